// Q5_0: 32 weights d * (n + 16 h - 16) (spec/gguf.md 3.1). Planes: 1 vec4 a block, n in its
// nibbles, the low ones first; the 32 bits h of a block; d, f16.

#import shared/scale

const BLOCK: u32 = 32u;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let n = (w[block] >> vec4(4u * run)) & vec4(0x0f0f0f0fu);
    let bits = w[p.part.blocks + (block >> 2u)][block & 3u] >> (16u * run);
    // The product spreads four bits over four bytes.
    let h = (((vec4(bits) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u)) * 0x204081u) & vec4(0x01010101u);
    let q = n | (h << vec4(4u));
    let d = scale_of(p.part.blocks + ((p.part.blocks + 3u) >> 2u), block);
    return mat4x4<f32>(
        d * vec4<f32>(unpack4xU8(q.x)) - 16.0 * d,
        d * vec4<f32>(unpack4xU8(q.y)) - 16.0 * d,
        d * vec4<f32>(unpack4xU8(q.z)) - 16.0 * d,
        d * vec4<f32>(unpack4xU8(q.w)) - 16.0 * d,
    );
}
