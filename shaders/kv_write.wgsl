// K[pos][h] = rotate(rms(x[t][h]) * gamma), V[pos][h] = v[t][h]: the step's keys and values into
// one segment of the cache; tokens of other segments are skipped. The norm is optional.
// spec/architectures.md 1.3 steps 3-5. One workgroup a (token, kv head): reads 8 bytes a pair of
// values (x again from cache), writes both in the cache's types.

#import shared/grid
#if norm
#import shared/reduce
#else
const WG: u32 = $WG;
struct Lane { @builtin(local_invocation_index) local: u32 }
#endif
#import kv/$K
#import kv/$V

struct Params {
    first: u32,          // of the (token, kv head)s
    rows: u32,           // one past the last of them
    n_kv: u32,
    head_dim: u32,
    n_rot: u32,
    segment_first: u32,  // position of the segment's first token
    segment_tokens: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;              // [step's n][n_kv][head_dim], raw keys
@group(0) @binding(1) var<storage, read> v: array<vec4<f32>>;        // [step's n][n_kv][head_dim / 4]
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;     // [step's n][n_rot/2] (cos, sin)
@group(0) @binding(3) var<storage, read> positions: array<u32>;      // [step's n]
@group(0) @binding(4) var<storage, read_write> keys: array<Stored_$K>;    // [token][n_kv][head_dim]
@group(0) @binding(5) var<storage, read_write> values: array<Stored_$V>;  // the same
#if norm
@group(0) @binding(6) var<storage, read> gamma: array<f32>;          // [head_dim]
#endif
@group(0) @binding(8) var<uniform> p: Params;

#import shared/rotate

#if K=q8_0|q4_0
#import shared/extremes
#endif
#if V=q8_0|q4_0
#import shared/extremes
#endif

// Stores eight `i` of `row`, which the lane holds if `live`; every invocation must call.
fn store_key(lane: u32, live: bool, row: u32, i: u32, e: Eight) {
    let at = places_$K(row, p.n_kv * p.head_dim / 8u, i);
#if K=q8_0|q4_0
    let both = block_extremes(lane, extreme(e));
    let scales = within_f16(vec4(scale_$K(both.x), scale_$K(both.y), 0.0, 0.0)).xy;
    if !live { return; }
    let words = pack_$K(e, scales[lane / 4u % 2u]);
    for (var w = 0u; w < WORDS_$K; w++) { keys[at.x * WORDS_$K + w] = words[w]; }
    if lane % 8u == 0u { keys[at.y * WORDS_$K + at.z / 2u] = pack2x16float(scales); }
#else
    if !live { return; }
    let packed = pack_$K(e);
    keys[at.x] = packed.a;
    if at.y != at.x { keys[at.y] = packed.b; }
#endif
}

// Likewise.
fn store_value(lane: u32, live: bool, row: u32, i: u32, e: Eight) {
    let at = places_$V(row, p.n_kv * p.head_dim / 8u, i);
#if V=q8_0|q4_0
    let both = block_extremes(lane, extreme(e));
    let scales = within_f16(vec4(scale_$V(both.x), scale_$V(both.y), 0.0, 0.0)).xy;
    if !live { return; }
    let words = pack_$V(e, scales[lane / 4u % 2u]);
    for (var w = 0u; w < WORDS_$V; w++) { values[at.x * WORDS_$V + w] = words[w]; }
    if lane % 8u == 0u { values[at.y * WORDS_$V + at.z / 2u] = pack2x16float(scales); }
#else
    if !live { return; }
    let packed = pack_$V(e);
    values[at.x] = packed.a;
    if at.y != at.x { values[at.y] = packed.b; }
#endif
}

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = p.first + flat_workgroup(id, groups);
    if n >= p.rows { return; }
    let token = n / p.n_kv;
    let slot = positions[token] - p.segment_first;
    // Positions before the segment wrap around and are skipped as well.
    if slot >= p.segment_tokens { return; }
    var row = Row(n * p.head_dim, token * (p.n_rot / 2u), 1.0);
#if norm
    var squares = 0.0;
    for (var i = lane.local; i < p.head_dim; i += WG) {
        let k = x[row.x + i];
        squares += k * k;
    }
    row.scale = inverseSqrt(workgroup_sum(squares, lane) / f32(p.head_dim) + p.eps);
#endif
    // An eight a lane.
    let eights = p.head_dim / 8u;
    let live = lane.local < eights;
    var key = Eight();
    var value = Eight();
    if live {
        let i = lane.local * 8u;
        key.lo = vec4(
            rotated(row, i), rotated(row, i + 1u), rotated(row, i + 2u), rotated(row, i + 3u),
        );
        key.hi = vec4(
            rotated(row, i + 4u), rotated(row, i + 5u), rotated(row, i + 6u), rotated(row, i + 7u),
        );
        let at = (n * eights + lane.local) * 2u;
        value = Eight(v[at], v[at + 1u]);
    }
    let i = n % p.n_kv * eights + lane.local;
    store_key(lane.local, live, slot, i, key);
    store_value(lane.local, live, slot, i, value);
}
