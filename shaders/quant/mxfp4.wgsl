// MXFP4: 32 weights 2^(e - 128) * value(n) (spec/gguf.md 3.1). Planes: 4 words a block, n in their
// nibbles, the low ones first; a byte e.

#import shared/pairs

alias Unit = u32;

const BLOCK: u32 = 32u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let n = (four_words(PLANES + 4u * block) >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let e = (word_of(PLANES + 4u * p.part.blocks, block >> 2u) >> (8u * (block & 3u))) & 0xffu;
    // Exponents too small for a normal number make 0, 255 makes NaN.
    let d = bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x7fc00000u, e == 255u));
    return Bytes(valued(n), d, -12.0 * d);
}
