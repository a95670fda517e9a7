// score[t][b] = scale * sum_h relu(q[t][h] . pooled[b]) of the complete blocks b of one segment, as
// bits of f32, which order like the numbers since none is negative. spec/architectures.md 4.5.4.
//
// A lane has 4 blocks and $TOKENS consecutive queries: a pooled key is read once for them, in
// consecutive 16 bytes over the lanes; the queries come from cache, once for the 4 blocks.
// 2 * TOKENS * HEADS operations a value. Queries that select every block get no scores.

#import shared/grid
#import kv/$T

const WG: u32 = 64u;
const D: u32 = $D;
const EIGHTS: u32 = D / 8u;
const TOKENS: u32 = $TOKENS;
const HEADS: u32 = $HEADS;
const ROWS: u32 = TOKENS * HEADS;

struct Params {
    groups: u32,       // workgroups in all
    tiles: u32,        // of them for the segment's blocks
    first: u32,        // the first query among the step's
    n: u32,            // queries of this dispatch
    ratio: u32,        // tokens a block
    most: u32,         // blocks a query selects
    first_block: u32,  // in pooled
    blocks: u32,       // there
    stride: u32,       // scores a query
    scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;           // [step's n][HEADS][D/4]
@group(0) @binding(1) var<storage, read> pooled: array<vec4<u32>>;      // shared/pooled
@group(0) @binding(2) var<storage, read> positions: array<u32>;         // [step's n]
@group(0) @binding(3) var<storage, read_write> scores: array<u32>;      // [n][stride]
@group(0) @binding(8) var<uniform> p: Params;

#import shared/pooled

fn pooled_key(block: u32, e: u32) -> Eight {
    let at = places_$T(0u, 0u, pooled_eight(min(block, p.blocks - 1u), e));
    return unpack_$T(Packed(pooled[at.x], pooled[at.y]));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let token = group / p.tiles * TOKENS;
    let last = min(token + TOKENS, p.n) - 1u;
    let complete = (positions[p.first + last] + 1u) / p.ratio;
    // The lane's blocks are WG apart.
    let local = group % p.tiles * 4u * WG + lane;
    if complete <= p.most || p.first_block + local >= complete || local >= p.blocks { return; }
    let rows = (last - token + 1u) * HEADS;
    let first_row = (p.first + token) * HEADS;
    var sums: array<vec4<f32>, ROWS>;
    for (var e = 0u; e < EIGHTS; e++) {
        let k0 = pooled_key(local, e);
        let k1 = pooled_key(local + WG, e);
        let k2 = pooled_key(local + 2u * WG, e);
        let k3 = pooled_key(local + 3u * WG, e);
        for (var r = 0u; r < ROWS; r++) {
            let source = (first_row + min(r, rows - 1u)) * (D / 4u) + 2u * e;
            let lo = q[source];
            let hi = q[source + 1u];
            sums[r] += vec4(
                dot(lo, k0.lo) + dot(hi, k0.hi), dot(lo, k1.lo) + dot(hi, k1.hi),
                dot(lo, k2.lo) + dot(hi, k2.hi), dot(lo, k3.lo) + dot(hi, k3.hi),
            );
        }
    }
    for (var t = 0u; t <= last - token; t++) {
        var sum = vec4(0.0);
        for (var h = 0u; h < HEADS; h++) { sum += max(sums[t * HEADS + h], vec4(0.0)); }
        // Without the sign that a zero may have; a NaN counts as 0.
        let bits = bitcast<vec4<u32>>(sum * p.scale) & vec4(0x7fffffffu);
        let scored = select(bits, vec4(0u), bits > vec4(0x7f800000u));
        for (var i = 0u; i < 4u; i++) {
            if local + i * WG < p.blocks {
                let block = p.first_block + local + i * WG;
                scores[(token + t) * p.stride + block] = scored[i];
            }
        }
    }
}
