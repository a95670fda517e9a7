// x[t][c] += 2 sigmoid(w[t][c]) y[t], then n[t][c] = rms(x[t][c]) * gamma[c]
// spec/architectures.md 4.5.1, 4.5.2: what a block made goes into every stream, and the streams are
// normed for the block that follows. One workgroup a stream of a token; 20 bytes a value.

#import shared/activation
#import shared/grid
#import shared/reduce

struct Params {
    rows: u32,      // tokens times streams
    width: u32,     // n_embd
    streams: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> w: array<f32>;         // [n][streams]
@group(0) @binding(1) var<storage, read> y: array<f32>;         // [n][width]
@group(0) @binding(2) var<storage, read> gamma: array<f32>;     // [streams][width]
@group(0) @binding(3) var<storage, read_write> x: array<f32>;   // [n][streams][width]
@group(0) @binding(4) var<storage, read_write> n: array<f32>;   // [n][streams][width]
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = flat_workgroup(id, groups);
    if row >= p.rows { return; }
    let weight = 2.0 * sigmoid(w[row]);
    let block = row / p.streams * p.width;
    var squares = 0.0;
    for (var i = lane.local; i < p.width; i += WG) {
        let v = x[row * p.width + i] + weight * y[block + i];
        x[row * p.width + i] = v;
        squares += v * v;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.width) + p.eps);
    let stream = row % p.streams * p.width;
    for (var i = lane.local; i < p.width; i += WG) {
        n[row * p.width + i] = x[row * p.width + i] * scale * gamma[stream + i];
    }
}
