// Q4_K: 256 weights d * sc * q - dmin * m, sc and m for each 32 (spec/gguf.md 3.2). 9 vec4 a block:
// d, dmin and 12 bytes of 6-bit (sc, m); then 16 low and 16 high nibbles q a vec4.

const BLOCK: u32 = 256u;

// The runs of a vec4 are 32 apart.
fn run_start(run: u32) -> u32 {
    return 64u * (run >> 2u) + 32u * (run & 1u) + 8u * (run & 2u);
}

fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let head = w[9u * block];
    let q = (w[9u * block + 1u + (run >> 1u)] >> vec4(4u * (run & 1u))) & vec4(0x0f0f0f0fu);
    // The scale and minimum of this run's 32 weights: spread over bytes g % 4 of three words.
    let group = run_start(run) >> 5u;
    let s = (head.yzw >> vec3(8u * (group & 3u))) & vec3(0xffu);
    let first = vec2(s.x & 63u, s.y & 63u);
    let second = vec2((s.z & 15u) | ((s.x >> 6u) << 4u), (s.z >> 4u) | ((s.y >> 6u) << 4u));
    let d = unpack2x16float(head.x) * vec2<f32>(select(first, second, group >= 4u));
    return mat4x4<f32>(
        d.x * vec4<f32>(unpack4xU8(q.x)) - d.y,
        d.x * vec4<f32>(unpack4xU8(q.y)) - d.y,
        d.x * vec4<f32>(unpack4xU8(q.z)) - d.y,
        d.x * vec4<f32>(unpack4xU8(q.w)) - d.y,
    );
}
