// IQ2_XS: 256 weights d * (0.5 + s) / 4 * magnitude * sign, s for each 16 (spec/gguf.md 3.3). Planes:
// 18 words a block: 16 of twice index and 7 signs, 2 of nibbles s; d, f16.

#import shared/bytes
#import shared/eights
#import shared/scale
#import shared/signs
#import shared/words

alias Unit = u32;

const BLOCK: u32 = 256u;
const WIDE: bool = true;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

const SIGNS: u32 = 1024u;
const PLANES: u32 = SIGNS + 256u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 18u * block;
    let word = w[i + run];
    let v = eights(word & 511u, (word >> 16u) & 511u);
    let s = (w[i + 16u + (run >> 3u)] >> (4u * (run & 7u))) & 15u;
    let d = scale_of(next_plane(PLANES, 18u * p.part.blocks), block) * (0.5 + f32(s)) * 0.25;
    return Bytes(even_signed(SIGNS, v, word >> 9u, word >> 25u), d, -128.0 * d);
}
