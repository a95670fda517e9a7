// x[t][c] += 2 sigmoid(w[t][c]) y[t], then n[t][c] = rms(x[t][c]) * gamma[c]
// spec/architectures.md 4.5.1, 4.5.2: what a block made goes into every stream, and the streams are
// normed for the block that follows. One workgroup a stream of a token; 20 bytes a value. Decoding
// has few rows and waits for loads: those of four values are under way together.

#import shared/activation
#import shared/grid
#import shared/reduce
#if whole
#import shared/quantise
#endif

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
#if whole
@group(0) @binding(5) var<storage, read_write> whole: array<u32>;  // n as whole numbers
#endif
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
    let last = p.width - 1u;
    for (var i = 4u * lane.local; i < p.width; i += 4u * WG) {
        var v: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            v[k] = x[row * p.width + at] + weight * y[block + at];
        }
        for (var k = 0u; k < 4u; k++) {
            let at = i + k;
            if at < p.width {
                x[row * p.width + at] = v[k];
                squares += v[k] * v[k];
            }
        }
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.width) + p.eps);
    let stream = row % p.streams * p.width;
    for (var first = 0u; first < p.width; first += 4u * WG) {
        let i = first + 4u * lane.local;
        var normed: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            normed[k] = x[row * p.width + at] * scale * gamma[stream + at];
        }
        for (var k = 0u; k < 4u; k++) {
            if i + k < p.width { n[row * p.width + i + k] = normed[k]; }
        }
#if whole
        quantise(lane.local, (row * p.width + i) / 4u, normed, i < p.width);
#endif
    }
}
