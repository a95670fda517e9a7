// y[row][i] = o[row][i] * rsqrt(mean_j(o[row][j]^2) + eps) * gamma[i] * act(z[row][i])
// spec/architectures.md 1.4 step 7; a row is a head of a token. One workgroup a row; reads o twice
// (the second time from cache) and z once, writes y once: 12 bytes, about 8 operations an element.

#import shared/grid
#import shared/reduce
#import shared/activation

struct Params {
    rows: u32,
    width: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> o: array<f32>;          // [rows][width]
@group(0) @binding(1) var<storage, read> z: array<f32>;          // [rows][width]
@group(0) @binding(2) var<storage, read> gamma: array<f32>;      // [width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;    // [rows][width]
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = flat_workgroup(id, groups);
    if row >= p.rows { return; }
    let start = row * p.width;
    var squares = 0.0;
    for (var i = lane.local; i < p.width; i += WG) {
        let v = o[start + i];
        squares += v * v;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.width) + p.eps);
    for (var i = lane.local; i < p.width; i += WG) {
        y[start + i] = o[start + i] * scale * gamma[i] * $act(z[start + i]);
    }
}
