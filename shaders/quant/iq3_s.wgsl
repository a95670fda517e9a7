// IQ3_S: 256 weights d * (1 + 2 s) * magnitude * sign, s for each 32 (spec/gguf.md 3.3). Planes: 27
// words a block: 16 of low bytes of indices, 2 of their ninth bits, 8 of signs, 1 of nibbles s; d,
// f16.

#import shared/bytes
#import shared/fours
#import shared/scale
#import shared/signs
#import shared/words

alias Unit = u32;

const BLOCK: u32 = 256u;
const WIDE: bool = true;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

const PLANES: u32 = 512u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 27u * block;
    let low = (vec4(w[i + run]) >> vec4(0u, 8u, 16u, 24u)) & vec4(0xffu);
    let high = w[i + 16u + (run >> 3u)] >> (4u * (run & 7u));
    let index = low | ((vec4(high) << vec4(8u, 7u, 6u, 5u)) & vec4(256u));
    let signs = w[i + 18u + (run >> 1u)] >> (16u * (run & 1u));
    let s = (w[i + 26u] >> (4u * (run >> 1u))) & 15u;
    let d = scale_of(next_plane(PLANES, 27u * p.part.blocks), block) * f32(1u + 2u * s);
    return Bytes(signed(fours(index), signs), d, -128.0 * d);
}
