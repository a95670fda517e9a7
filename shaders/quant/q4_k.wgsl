// Q4_K: 256 weights d * sc * q - dmin * m, sc and m for each 32 (spec/gguf.md 3.2). 9 vec4 a block:
// 1 of d, dmin, sc and m; then 16 low and 16 high nibbles q a vec4.

#import shared/bytes
#import shared/scale_min

alias Unit = vec4<u32>;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

// The runs of a vec4 are 32 apart.
fn run_start(run: u32) -> u32 {
    return 64u * (run >> 2u) + 32u * (run & 1u) + 8u * (run & 2u);
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let q = (w[9u * block + 1u + (run >> 1u)] >> vec4(4u * (run & 1u))) & vec4(0x0f0f0f0fu);
    let d = scale_min(w[9u * block], run_start(run) >> 5u);
    return Bytes(q, d.x, -d.y);
}
