// y[row][i] = x[row][i] * rsqrt(mean_j(x[row][j]^2) + eps) * gamma[i]
// spec/architectures.md 1.1. One workgroup a row; reads x twice (the second time from cache),
// writes y once: 8 bytes and about 4 operations an element. Decoding has one row and waits for
// loads: those of four values are under way together. With `whole` y is written as whole numbers besides.

#import shared/grid
#import shared/reduce
#if whole
#import shared/quantise
#endif

struct Params {
    rows: u32,
    width: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;            // [rows][width]
@group(0) @binding(1) var<storage, read> gamma: array<f32>;        // [width]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;      // [rows][width]
#if whole
@group(0) @binding(3) var<storage, read_write> whole: array<u32>;     // y as whole numbers
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
    let last = p.width - 1u;
    for (var i = 4u * lane.local; i < p.width; i += 4u * WG) {
        for (var k = 0u; k < 4u; k++) {
            let at = i + k;
            let v = x[start + min(at, last)];
            squares += select(0.0, v * v, at < p.width);
        }
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.width) + p.eps);
    for (var first = 0u; first < p.width; first += 4u * WG) {
        let i = first + 4u * lane.local;
        var normed: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            normed[k] = x[start + at] * scale * gamma[at];
        }
        for (var k = 0u; k < 4u; k++) {
            if i + k < p.width { y[start + i + k] = normed[k]; }
        }
#if whole
        quantise(lane.local, (start + i) / 4u, normed, i < p.width);
#endif
    }
}
