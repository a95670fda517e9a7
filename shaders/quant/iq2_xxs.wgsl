// IQ2_XXS: 256 weights d * (0.5 + s) / 4 * magnitude * sign, s for each 32 (spec/gguf.md 3.3).
// Planes: 16 words a block, two for 32 weights: 4 bytes of indices, 4 times 7 signs and 4 bits s;
// d, f16.

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

const SIGNS: u32 = 512u;
const PLANES: u32 = SIGNS + 256u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 16u * block + 2u * (run >> 1u);
    let indices = w[i] >> (16u * (run & 1u));
    let word = w[i + 1u];
    let signs = word >> (14u * (run & 1u));
    let v = eights(indices & 0xffu, (indices >> 8u) & 0xffu);
    let d = scale_of(PLANES + 16u * p.part.blocks, block) * (0.5 + f32(word >> 28u)) * 0.25;
    return Bytes(even_signed(SIGNS, v, signs, signs >> 7u), d, -128.0 * d);
}
