// F32: 32 weights in 8 vec4. The interface of every format:
//
// BLOCK weights a block, in units of 32 that share loads; a unit is two runs of 16 consecutive
// weights, `side` 0 and 1. `run_start`: first weight of a run inside the block. `load_run`: its
// weights, in order. The kernel declares the part's words as `w` and its shape as `p.part`.

const BLOCK: u32 = 32u;

fn run_start(unit: u32, side: u32) -> u32 {
    return 16u * side;
}

fn load_run(block: u32, unit: u32, side: u32) -> mat4x4<f32> {
    let i = 8u * block + 4u * side;
    return mat4x4<f32>(
        bitcast<vec4<f32>>(w[i]),
        bitcast<vec4<f32>>(w[i + 1u]),
        bitcast<vec4<f32>>(w[i + 2u]),
        bitcast<vec4<f32>>(w[i + 3u]),
    );
}
