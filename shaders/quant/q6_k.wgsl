// Q6_K: 256 weights d * sc * (q - 32), sc for each 16 (spec/gguf.md 3.2). Planes: 13 vec4 a block:
// 8 of low nibbles of q, 4 of its high bit pairs, 1 of signed bytes sc; d, f16.

#import shared/bytes
#import shared/plane
#import shared/scale

alias Unit = vec4<u32>;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

// The runs of a vec4 of low nibbles are 64 apart.
fn run_start(run: u32) -> u32 {
    return 128u * (run >> 3u) + 64u * (run & 1u) + 8u * (run & 6u);
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = 13u * block;
    let low = (w[i + (run >> 1u)] >> vec4(4u * (run & 1u))) & vec4(0x0f0f0f0fu);
    let pairs = w[i + 8u + 2u * (run >> 3u) + ((run >> 1u) & 1u)];
    let high = (pairs >> vec4(((run >> 1u) & 2u) + 4u * (run & 1u))) & vec4(0x03030303u);
    // Byte n of the scales, sign extended.
    let n = run_start(run) >> 4u;
    let sc = i32(w[i + 12u][n >> 2u] << (24u - 8u * (n & 3u))) >> 24u;
    let d = scale_of(13u * p.part.blocks, block) * f32(sc);
    return Bytes(low | (high << vec4(4u)), d, -32.0 * d);
}
