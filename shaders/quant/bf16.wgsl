// BF16: 32 weights in 4 vec4, two a word, each the upper half of an f32.

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let a = w[4u * block + 2u * run];
    let b = w[4u * block + 2u * run + 1u];
    return mat4x4<f32>(widened(a.xy), widened(a.zw), widened(b.xy), widened(b.zw));
}

fn widened(v: vec2<u32>) -> vec4<f32> {
    let first = v << vec2(16u);
    let second = v & vec2(0xffff0000u);
    return bitcast<vec4<f32>>(vec4(first.x, second.x, first.y, second.y));
}
