// IQ1_S: 256 weights d * (2 s + 1) * (value - 1 + delta), s and delta for each 32 (spec/gguf.md 3.3).
// Planes: 12 words a block: 8 of low bytes of indices, 4 of twice 4 times 3 high bits of an index, 3
// bits s and the sign of delta; d, f16.

#import shared/bytes
#import shared/eights
#import shared/scale
#import shared/words

alias Unit = u32;

const BLOCK: u32 = 256u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

const PLANES: u32 = 2048u;

fn load_bytes(block: u32, run: u32) -> Bytes {
    let i = PLANES + 12u * block;
    let low = w[i + (run >> 1u)] >> (16u * (run & 1u));
    let word = w[i + 8u + (run >> 2u)] >> (8u * (run & 2u));
    let high = word >> (6u * (run & 1u));
    let first = (low & 0xffu) | ((high & 7u) << 8u);
    let second = ((low >> 8u) & 0xffu) | ((high & 0x38u) << 5u);
    let scale = f32(((word >> 11u) & 14u) + 1u);
    let d = scale_of(PLANES + 12u * p.part.blocks, block) * scale;
    let offset = select(-0.875, -1.125, (word & 0x8000u) != 0u);
    return Bytes(small_eights(first, second), d, d * offset);
}
