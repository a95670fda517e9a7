// F16: 32 weights in 4 vec4, two a word.

alias Unit = vec4<u32>;

const BLOCK: u32 = 32u;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let a = w[4u * block + 2u * run];
    let b = w[4u * block + 2u * run + 1u];
    return mat4x4<f32>(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
}

fn halves(a: u32, b: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
}
