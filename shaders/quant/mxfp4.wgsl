// MXFP4: 32 weights 2^(e - 128) * value(n) (spec/gguf.md 3.1). Planes: 4 words a block, n in their
// nibbles, the low ones first; a byte e.

#import shared/pairs

alias Unit = u32;

const BLOCK: u32 = 32u;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let n = (four_words(PLANES + 4u * block) >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let e = word_of(PLANES + 4u * p.part.blocks, block >> 2u) >> (8u * (block & 3u));
    // Exponents too small for a normal number make 0.
    return valued(n, bitcast<f32>((max(e & 0xffu, 1u) - 1u) << 23u));
}
