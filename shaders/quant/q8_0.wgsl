// Q8_0: 32 weights d * q (spec/gguf.md 3.1). Planes: 2 vec4 of signed bytes q a block; d, f16.

#import shared/scale

const BLOCK: u32 = 32u;

fn run_start(unit: u32, side: u32) -> u32 {
    return 16u * side;
}

fn load_run(block: u32, unit: u32, side: u32) -> mat4x4<f32> {
    let q = w[2u * block + side];
    let d = scale_of(2u * p.part.blocks, block);
    return mat4x4<f32>(
        d * vec4<f32>(unpack4xI8(q.x)),
        d * vec4<f32>(unpack4xI8(q.y)),
        d * vec4<f32>(unpack4xI8(q.z)),
        d * vec4<f32>(unpack4xI8(q.w)),
    );
}
