// Q5_0: 32 weights d * (n + 16 h - 16) (spec/gguf.md 3.1). Planes: 1 vec4 a block, n in its
// nibbles, the low ones first; the 32 bits h of a block; d, f16.

#import shared/bytes
#import shared/plane
#import shared/scale

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let n = (w[block] >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let h = spread(word_of(p.part.blocks, block) >> (16u * run));
    let d = scale_of(next_plane(p.part.blocks, p.part.blocks), block);
    return Bytes(n | (h << vec4(4u)), d, -16.0 * d);
}
