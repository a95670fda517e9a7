// IQ1_M: 256 weights d * (2 s + 1) * (value - 1 + delta), s for each 16, delta for each 8
// (spec/gguf.md 3.3). 14 words a block: 8 of low bytes of indices, 4 of their 3 high bits and the
// sign of delta, 2 of twice 4 times 3 bits s and a quarter of the f16 d.

#import shared/bytes
#import shared/eights
#import shared/words

alias Unit = u32;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

const PLANES: u32 = 2048u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 14u * block;
    let low = w[i + (run >> 1u)] >> (16u * (run & 1u));
    let high = w[i + 8u + (run >> 2u)] >> (8u * (run & 3u));
    let first = (low & 0xffu) | ((high & 7u) << 8u);
    let second = ((low >> 8u) & 0xffu) | ((high & 0x70u) << 4u);
    let scales = vec2(w[i + 12u], w[i + 13u]);
    let quarters = ((scales >> vec2(12u)) & vec2(15u)) | ((scales >> vec2(24u)) & vec2(0xf0u));
    let s = select(scales.x, scales.y, run >= 8u) >> (4u * (run & 4u) + 3u * (run & 3u));
    let d = unpack2x16float(quarters.x | (quarters.y << 8u)).x * f32(2u * (s & 7u) + 1u);
    // In eighths of d: 8 values, 8 less, and 1 more or less.
    let up = select(vec2(0x02020202u), vec2(0u), (vec2(high) & vec2(8u, 0x80u)) != vec2(0u));
    let q = (small_eights(first, second) << vec4(3u)) | up.xxyy;
    return Bytes(q, 0.125 * d, -1.125 * d);
}
