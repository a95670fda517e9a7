// IQ4_NL: 32 weights d * value(n) (spec/gguf.md 3.1). Planes: 4 words a block, n in their nibbles, the
// low ones first; d, f16.

#import shared/pairs
#import shared/scale

alias Unit = u32;

const BLOCK: u32 = 32u;
const WIDE: bool = true;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let n = (four_words(PLANES + 4u * block) >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let d = scale_of(PLANES + 4u * p.part.blocks, block);
    return Bytes(valued(n), d, -128.0 * d);
}
