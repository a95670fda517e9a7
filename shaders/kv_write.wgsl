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
    rows: u32,           // n * n_kv
    n_kv: u32,
    head_dim: u32,
    n_rot: u32,
    segment_first: u32,  // position of the segment's first token
    segment_tokens: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;              // [n][n_kv][head_dim], raw keys
@group(0) @binding(1) var<storage, read> v: array<vec4<f32>>;        // [n][n_kv][head_dim / 4]
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;     // [n][n_rot/2] (cos, sin)
@group(0) @binding(3) var<storage, read> positions: array<u32>;      // [n]
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<u32>>;    // [token][n_kv][head_dim]
@group(0) @binding(5) var<storage, read_write> values: array<vec4<u32>>;  // the same
#if norm
@group(0) @binding(6) var<storage, read> gamma: array<f32>;          // [head_dim]
#endif
@group(1) @binding(0) var<uniform> p: Params;

#import shared/rotate

fn store_key(i: u32, e: Eight) {
    let at = words_$K(i);
    let packed = pack_$K(e);
    keys[at.x] = packed.a;
    if at.y != at.x { keys[at.y] = packed.b; }
}

fn store_value(i: u32, e: Eight) {
    let at = words_$V(i);
    let packed = pack_$V(e);
    values[at.x] = packed.a;
    if at.y != at.x { values[at.y] = packed.b; }
}

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = flat_workgroup(id, groups);
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
    let eights = p.head_dim / 8u;
    let out = (slot * p.n_kv + n % p.n_kv) * eights;
    for (var e = lane.local; e < eights; e += WG) {
        let i = e * 8u;
        let lo = vec4(
            rotated(row, i), rotated(row, i + 1u), rotated(row, i + 2u), rotated(row, i + 3u),
        );
        let hi = vec4(
            rotated(row, i + 4u), rotated(row, i + 5u), rotated(row, i + 6u), rotated(row, i + 7u),
        );
        store_key(out + e, Eight(lo, hi));
        let at = (n * eights + e) * 2u;
        store_value(out + e, Eight(v[at], v[at + 1u]));
    }
}
