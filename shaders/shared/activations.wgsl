// Four values of a row of x, from the i-th on (i a multiple of 4). With `odd` the width is no
// multiple of 32: what lies past it reads as 0.
#if odd
fn x4(row: u32, i: u32) -> vec4<f32> {
    let at = vec4(i) + vec4(0u, 1u, 2u, 3u);
    let j = vec4(row * p.n_in) + min(at, vec4(p.n_in - 1u));
    return select(vec4<f32>(), vec4(x[j.x], x[j.y], x[j.z], x[j.w]), at < vec4(p.n_in));
}
#else
fn x4(row: u32, i: u32) -> vec4<f32> {
    return x[row * (p.n_in >> 2u) + (i >> 2u)];
}
#endif
