// Q2_K: 256 weights d * sc * q - dmin * m, sc and m for each 16 (spec/gguf.md 3.2). Planes: 5 vec4 a
// block: 1 of bytes sc and m, 4 of bit pairs q; d and dmin, f16.

#import shared/bytes
#import shared/plane

alias Unit = vec4<u32>;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

// The four runs of a vec4 are 32 apart.
fn run_start(run: u32) -> u32 {
    return 128u * (run >> 3u) + 16u * ((run >> 2u) & 1u) + 32u * (run & 3u);
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let q = (w[5u * block + 1u + (run >> 2u)] >> vec4(2u * (run & 3u))) & vec4(0x03030303u);
    let group = run_start(run) >> 4u;
    let s = (w[5u * block][group >> 2u] >> (8u * (group & 3u))) & 0xffu;
    let d = unpack2x16float(word_of(5u * p.part.blocks, block)) * vec2<f32>(vec2(s & 15u, s >> 4u));
    return Bytes(q, d.x, -d.y);
}
