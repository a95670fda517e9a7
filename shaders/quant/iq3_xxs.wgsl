// IQ3_XXS: 256 weights d * (0.5 + s) / 2 * magnitude * sign, s for each 32 (spec/gguf.md 3.3).
// Planes: 24 words a block: 16 of indices, 8 of 4 times 7 signs and 4 bits s; d, f16.

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

const SIGNS: u32 = 256u;
const PLANES: u32 = SIGNS + 256u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 24u * block;
    let v = fours((vec4(w[i + run]) >> vec4(0u, 8u, 16u, 24u)) & vec4(0xffu));
    let word = w[i + 16u + (run >> 1u)];
    let signs = word >> (14u * (run & 1u));
    let d = scale_of(PLANES + 24u * p.part.blocks, block) * (0.5 + f32(word >> 28u)) * 0.5;
    return Bytes(even_signed(SIGNS, v, signs, signs >> 7u), d, -128.0 * d);
}
