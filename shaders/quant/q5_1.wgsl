// Q5_1: 32 weights d * (n + 16 h) + m (spec/gguf.md 3.1). Planes: 1 vec4 a block, n in its nibbles,
// the low ones first; d and m, f16, and the 32 bits h of a block.

#import shared/bytes
#import shared/plane

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let n = (w[block] >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let d = unpack2x16float(word_of(p.part.blocks, 2u * block));
    let h = spread(word_of(p.part.blocks, 2u * block + 1u) >> (16u * run));
    return Bytes(n | (h << vec4(4u)), d.x, d.y);
}
