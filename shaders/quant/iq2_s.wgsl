// IQ2_S: 256 weights d * (0.5 + s) / 4 * magnitude * sign, s for each 16 (spec/gguf.md 3.3). Planes: 20
// words a block: 8 of low bytes of indices, 8 of signs, 2 of high bit pairs of indices, 2 of nibbles
// s; d, f16.

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

const PLANES: u32 = 2048u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 20u * block;
    let low = w[i + (run >> 1u)] >> (16u * (run & 1u));
    let signs = w[i + 8u + (run >> 1u)] >> (16u * (run & 1u));
    let high = w[i + 16u + (run >> 3u)] >> (4u * (run & 7u));
    let s = (w[i + 18u + (run >> 3u)] >> (4u * (run & 7u))) & 15u;
    let first = (low & 0xffu) | ((high & 3u) << 8u);
    let second = ((low >> 8u) & 0xffu) | ((high & 12u) << 6u);
    let d = scale_of(PLANES + 20u * p.part.blocks, block) * (0.5 + f32(s)) * 0.25;
    return Bytes(signed(eights(first, second), signs), d, -128.0 * d);
}
