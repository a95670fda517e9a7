// One stream of a token: how well its n-grams' key answers the stream decides how much of their
// value it takes.
//   s = dot(rms(k) * key_norm, rms(x) * query_norm) / sqrt(width)
//   u = sigmoid(sign(s) * sqrt(max(|s|, 1e-6))) * v
//   x += u;  normed = rms(u) * conv_norm
// spec/architectures.md 4.5.3. One workgroup a (token, stream): reads k, v, x and the norms
// twice (the second time from cache), writes x and normed once: 20 bytes and about 16 operations
// a value, norms apart.

#import shared/grid
#import shared/reduce_fours
#import shared/activation

struct Params {
    rows: u32,       // n * streams
    streams: u32,
    width: u32,      // n_embd
    eps: f32,
}

@group(0) @binding(0) var<storage, read> k: array<f32>;                // [n][streams][width]
@group(0) @binding(1) var<storage, read> v: array<f32>;                // [n][width]
@group(0) @binding(2) var<storage, read> key_norm: array<f32>;         // [streams][width]
@group(0) @binding(3) var<storage, read> query_norm: array<f32>;       // [streams][width]
@group(0) @binding(4) var<storage, read> conv_norm: array<f32>;        // [streams][width]
@group(0) @binding(5) var<storage, read_write> x: array<f32>;          // [n][streams][width]
@group(0) @binding(6) var<storage, read_write> normed: array<f32>;     // [n][streams][width]
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
    let value = row / p.streams * p.width;
    let norm = row % p.streams * p.width;
    // Squares of k, x and v, and the unscaled product of key and query.
    var sums = vec4<f32>();
    for (var i = lane.local; i < p.width; i += WG) {
        let a = k[start + i];
        let b = x[start + i];
        let c = v[value + i];
        sums += vec4<f32>(a * a, b * b, c * c, a * key_norm[norm + i] * b * query_norm[norm + i]);
    }
    let total = workgroup_sums(sums, lane);
    let means = total / f32(p.width);
    let scales = inverseSqrt(means.xy + p.eps);
    let score = total.w * scales.x * scales.y / sqrt(f32(p.width));
    let gate = sigmoid(sign(score) * sqrt(max(abs(score), 1e-6)));
    let scale = inverseSqrt(gate * gate * means.z + p.eps);
    for (var i = lane.local; i < p.width; i += WG) {
        let u = gate * v[value + i];
        x[start + i] += u;
        normed[start + i] = u * scale * conv_norm[norm + i];
    }
}
