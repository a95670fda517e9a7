// IQ4_XS: 256 weights d * (ls - 32) * value(n), ls for each 32 (spec/gguf.md 3.3). Planes: 32 words a
// block, n in nibbles, four words for 32 weights, the low ones first; 2 words: d, f16, high bit pairs
// of ls, low nibbles of ls.

#import shared/pairs

alias Unit = u32;

const BLOCK: u32 = 256u;
const WIDE: bool = true;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let group = run >> 1u;
    let i = PLANES + 32u * block + 4u * group;
    let n = (four_words(i) >> vec4(4u * (run & 1u))) & vec4(0x0f0f0f0fu);
    let heads = PLANES + 32u * p.part.blocks;
    let head = word_of(heads, 2u * block);
    let low = (word_of(heads, 2u * block + 1u) >> (4u * group)) & 15u;
    let high = (head >> (16u + 2u * group)) & 3u;
    let ls = f32(low | (high << 4u)) - 32.0;
    let d = unpack2x16float(head).x * ls;
    return Bytes(valued(n), d, -128.0 * d);
}
