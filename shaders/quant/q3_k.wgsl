// Q3_K: 256 weights d * (sc - 32) * (q - 4), sc for each 16 (spec/gguf.md 3.2). Planes: 6 vec4 a
// block: 2 of the high bits of q, 4 of its low bit pairs; 3 words of sc: low nibbles, high bit
// pairs; d, f16.

#import shared/bytes
#import shared/plane
#import shared/scale

alias Unit = vec4<u32>;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

// The four runs of a vec4 of bit pairs are 32 apart.
fn run_start(run: u32) -> u32 {
    return 128u * (run >> 3u) + 16u * ((run >> 2u) & 1u) + 32u * (run & 3u);
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = 6u * block;
    let low = (w[i + 2u + (run >> 2u)] >> vec4(2u * (run & 3u))) & vec4(0x03030303u);
    let high = w[i + ((run >> 2u) & 1u)] >> vec4(4u * (run >> 3u) + (run & 3u));
    let q = low | ((high & vec4(0x01010101u)) << vec4(2u));
    // Group g has nibble g / 8 of byte g % 8, then bit pair g / 4 of byte g % 4.
    let scales = 6u * p.part.blocks;
    let g = run_start(run) >> 4u;
    let nibble = word_of(scales, 3u * block + ((g >> 2u) & 1u)) >> (8u * (g & 3u) + 4u * (g >> 3u));
    let pair = word_of(scales, 3u * block + 2u) >> (8u * (g & 3u) + 2u * (g >> 2u));
    let sc = f32((nibble & 15u) | ((pair & 3u) << 4u)) - 32.0;
    let d = scale_of(next_plane(scales, 3u * p.part.blocks), block) * sc;
    return Bytes(q, d, -4.0 * d);
}
