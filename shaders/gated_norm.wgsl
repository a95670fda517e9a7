// y[row][i] = o[row][i] * rsqrt(mean_j(o[row][j]^2) + eps) * gamma[i] * act(z[row][i])
// spec/architectures.md 1.4 step 7; a row is a head of a token. One workgroup a row; reads o twice
// (the second time from cache) and z once, writes y once: 12 bytes, about 8 operations an element. With
// `whole` y is written as whole numbers besides.

#import shared/grid
#import shared/reduce
#import shared/activation
#if whole
#import shared/quantise
#endif

struct Params {
    rows: u32,
    width: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> o: array<f32>;          // [rows][width]
@group(0) @binding(1) var<storage, read> z: array<f32>;          // [rows][width]
@group(0) @binding(2) var<storage, read> gamma: array<f32>;      // [width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;    // [rows][width]
#if whole
@group(0) @binding(4) var<storage, read_write> whole: array<u32>;   // y as whole numbers
#endif
@group(0) @binding(8) var<uniform> p: Params;

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
    let last = p.width - 1u;
    for (var first = 0u; first < p.width; first += 4u * WG) {
        let i = first + 4u * lane.local;
        var gated: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            gated[k] = o[start + at] * scale * gamma[at] * $act(z[start + at]);
        }
        for (var k = 0u; k < 4u; k++) {
            if i + k < p.width { y[start + i + k] = gated[k]; }
        }
#if whole
        quantise(lane.local, (start + i) / 4u, gated, i < p.width);
#endif
    }
}
