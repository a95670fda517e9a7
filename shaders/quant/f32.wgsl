// F32: 32 weights in 8 vec4. The interface of every format:
//
// BLOCK weights a block, in runs of 16 consecutive ones; runs 2 i and 2 i + 1 share loads where a
// byte holds weights of both. `run_start`: first weight of a run inside the block. `load_run`: its
// weights, in order. Where they are made of bytes, `load_bytes` gives these (`shared/bytes`). The
// kernel declares the part as `w`, an array of Unit (vec4 of words, or words), and its shape as
// `p.part`.

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let i = 8u * block + 4u * run;
    return mat4x4<f32>(
        bitcast<vec4<f32>>(w[i]),
        bitcast<vec4<f32>>(w[i + 1u]),
        bitcast<vec4<f32>>(w[i + 2u]),
        bitcast<vec4<f32>>(w[i + 3u]),
    );
}
