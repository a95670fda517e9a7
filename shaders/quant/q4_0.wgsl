// Q4_0: 32 weights d * (n - 8) (spec/gguf.md 3.1). Planes: 1 vec4 a block, n in its nibbles, the
// low ones first; d, f16.

#import shared/bytes
#import shared/plane
#import shared/scale

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let n = (w[block] >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let d = scale_of(p.part.blocks, block);
    return Bytes(n, d, -8.0 * d);
}
