// Q8_0: 32 weights d * q (spec/gguf.md 3.1). Planes: 2 vec4 of signed bytes q a block; d, f16.

#import shared/bytes
#import shared/plane
#import shared/scale

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;
const WIDE: bool = true;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    // Bytes without a sign convert in one instruction on some devices: q + 128, then the scale's
    // product with 128 taken off again.
    let q = w[2u * block + run] ^ vec4(0x80808080u);
    let d = scale_of(2u * p.part.blocks, block);
    return Bytes(q, d, -128.0 * d);
}
