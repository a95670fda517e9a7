// x[t][c] += 2 sigmoid(w[t][c]) y[t]            with `inject`
// n[t][c] = rms(x[t][c]) * gamma[c]
// parts[t][c][o] = sum_i rows[o][c][i] n[t][c][i]   with `weigh`
// spec/architectures.md 4.5.1, 4.5.2: what a block made goes into every stream, and the streams are
// normed for what reads them next. The weights w of that one's output are products with all normed
// streams: each stream's part of them is made here, and w is the sum of the parts that came before.
// One workgroup a stream of a token; 20 bytes a value, and 4 more an output of the weights.
// Decoding has few rows and waits for loads: those of four values are under way together.

#import shared/activation
#import shared/grid
#import shared/reduce
#if weigh
#import shared/reduce_fours
#endif
#if whole
#import shared/quantise
#endif

const STREAMS: u32 = $STREAMS;

struct Params {
    rows: u32,      // tokens times streams
    width: u32,     // n_embd
    eps: f32,
}

@group(0) @binding(0) var<storage, read> gamma: array<f32>;         // [streams][width]
@group(0) @binding(1) var<storage, read_write> x: array<f32>;       // [n][streams][width]
@group(0) @binding(2) var<storage, read_write> n: array<f32>;       // [n][streams][width]
#if inject
@group(0) @binding(3) var<storage, read> before: array<f32>;        // [n][streams][streams] parts of w
@group(0) @binding(4) var<storage, read> y: array<f32>;             // [n][width]
#endif
#if weigh
@group(0) @binding(5) var<storage, read> rows: array<f32>;          // [streams][streams][width]
@group(0) @binding(6) var<storage, read_write> parts: array<f32>;   // [n][streams][streams]
#endif
#if whole
@group(0) @binding(7) var<storage, read_write> whole: array<u32>;   // n as whole numbers
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
    let stream = row % STREAMS;
#if inject
    let token = row / STREAMS;
    var w = 0.0;
    for (var c = 0u; c < STREAMS; c++) { w += before[(token * STREAMS + c) * STREAMS + stream]; }
    let weight = 2.0 * sigmoid(w);
#endif
    var squares = 0.0;
    let last = p.width - 1u;
    for (var i = 4u * lane.local; i < p.width; i += 4u * WG) {
        var v: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            v[k] = x[row * p.width + at];
#if inject
            v[k] += weight * y[token * p.width + at];
#endif
        }
        for (var k = 0u; k < 4u; k++) {
            let at = i + k;
            if at < p.width {
#if inject
                x[row * p.width + at] = v[k];
#endif
                squares += v[k] * v[k];
            }
        }
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.width) + p.eps);
#if weigh
    var sums: array<vec4<f32>, (STREAMS + 3u) / 4u>;
#endif
    for (var first = 0u; first < p.width; first += 4u * WG) {
        let i = first + 4u * lane.local;
        var normed: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = min(i + k, last);
            normed[k] = x[row * p.width + at] * scale * gamma[stream * p.width + at];
        }
        for (var k = 0u; k < 4u; k++) {
            if i + k < p.width { n[row * p.width + i + k] = normed[k]; }
        }
#if weigh
        for (var o = 0u; o < STREAMS; o++) {
            let start = (o * STREAMS + stream) * p.width;
            for (var k = 0u; k < 4u; k++) {
                let product = rows[start + min(i + k, last)] * normed[k];
                sums[o / 4u][o % 4u] += select(0.0, product, i + k < p.width);
            }
        }
#endif
#if whole
        quantise(lane.local, (row * p.width + i) / 4u, normed, i < p.width);
#endif
    }
#if weigh
    for (var o = 0u; o < STREAMS; o += 4u) {
        let sum = workgroup_sums(sums[o / 4u], lane);
        if lane.local == 0u {
            for (var k = 0u; k < min(STREAMS - o, 4u); k++) { parts[row * STREAMS + o + k] = sum[k]; }
        }
    }
#endif
}
