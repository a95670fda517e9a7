// y[t][h] = rotate(rms(x[t][h]) * gamma), the norm being optional: queries before attention.
// spec/architectures.md 1.1-1.3. One workgroup a (token, head); with the norm x is read three
// times (twice from cache), y written once: 8 bytes and about 10 operations a value.

#import shared/grid
#if norm
#import shared/reduce
#else
const WG: u32 = $WG;
struct Lane { @builtin(local_invocation_index) local: u32 }
#endif

struct Params {
    rows: u32,       // n * heads
    heads: u32,
    head_dim: u32,
    n_rot: u32,
    x_token: u32,    // values from one token to the next in x
    x_head: u32,     // values from one head to the next in x
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;            // [n][heads][head_dim], strided
@group(0) @binding(1) var<storage, read> rope: array<vec2<f32>>;   // [n][n_rot/2] (cos, sin)
@group(0) @binding(2) var<storage, read_write> y: array<f32>;      // [n][heads][head_dim]
#if norm
@group(0) @binding(3) var<storage, read> gamma: array<f32>;        // [head_dim]
#endif
@group(0) @binding(8) var<uniform> p: Params;

#import shared/rotate

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = flat_workgroup(id, groups);
    if n >= p.rows { return; }
    let token = n / p.heads;
    var row = Row(token * p.x_token + n % p.heads * p.x_head, token * (p.n_rot / 2u), 1.0);
#if norm
    var squares = 0.0;
    for (var i = lane.local; i < p.head_dim; i += WG) {
        let v = x[row.x + i];
        squares += v * v;
    }
    row.scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.head_dim) + p.eps);
#endif
    for (var i = lane.local; i < p.head_dim; i += WG) {
        y[n * p.head_dim + i] = rotated(row, i);
    }
}
