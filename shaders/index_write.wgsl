// The index keys of a step into one segment: every token's key as it is, and for every block that
// the step completes rotate(rms(mean of its keys) * gamma), rotated as its first token.
// spec/architectures.md 4.5.4. One workgroup a block that the step touches; keys of earlier steps
// come from the segment. The mean is of the keys as stored, so that chunks do not change it.

#import shared/grid
#import shared/reduce
#import kv/$T

const D: u32 = $D;
const EIGHTS: u32 = D / 8u;

struct Params {
    groups: u32,         // blocks that n consecutive positions can touch
    row: u32,            // of the first token in keys and positions, of its block in rope
    n: u32,
    ratio: u32,          // tokens a block
    n_rot: u32,
    segment_first: u32,  // position of the segment's first token
    segment_tokens: u32,
    pooled_first: u32,   // position of the first block in pooled
    eps: f32,
}

@group(0) @binding(0) var<storage, read> keys: array<vec4<f32>>;         // [step's n][D/4]
@group(0) @binding(1) var<storage, read> gamma: array<f32>;              // [D]
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;         // [step's n][n_rot/2]
@group(0) @binding(3) var<storage, read> positions: array<u32>;          // [step's n]
@group(0) @binding(4) var<storage, read_write> raw: array<vec4<u32>>;    // [token][D]
@group(0) @binding(5) var<storage, read_write> pooled: array<vec4<u32>>; // shared/pooled
@group(0) @binding(8) var<uniform> p: Params;

var<workgroup> x: array<f32, D>;  // the block's mean

#import shared/pooled
#import shared/rotate

// Where eight `i` of the key at `position` is.
fn places(position: u32, i: u32) -> vec3<u32> {
    return places_$T(position - p.segment_first, EIGHTS, i);
}

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = flat_workgroup(id, groups);
    if n >= p.groups { return; }
    let start = positions[p.row];
    let block = start / p.ratio + n;
    let first = block * p.ratio;
    let step_end = start + p.n;
    // Positions before the segment wrap around and are skipped as well.
    if first - p.segment_first >= p.segment_tokens || first >= step_end { return; }
    let end = min(first + p.ratio, step_end);
    for (var i = lane.local; i < EIGHTS; i += WG) {
        for (var position = max(first, start); position < end; position++) {
            let source = ((p.row + position - start) * EIGHTS + i) * 2u;
            let packed = pack_$T(Eight(keys[source], keys[source + 1u]));
            let at = places(position, i);
            raw[at.x] = packed.a;
            if at.y != at.x { raw[at.y] = packed.b; }
        }
    }
    if end != first + p.ratio { return; }
    // So that compilers do not use the keys as they were before they were rounded.
    storageBarrier();
    var squares = 0.0;
    for (var i = lane.local; i < EIGHTS; i += WG) {
        var sum = Eight(vec4(0.0), vec4(0.0));
        for (var position = first; position < end; position++) {
            let at = places(position, i);
            let key = unpack_$T(Packed(raw[at.x], raw[at.y]));
            sum.lo += key.lo;
            sum.hi += key.hi;
        }
        let share = 1.0 / f32(p.ratio);
        for (var j = 0u; j < 4u; j++) {
            x[8u * i + j] = sum.lo[j] * share;
            x[8u * i + 4u + j] = sum.hi[j] * share;
        }
        squares += (dot(sum.lo, sum.lo) + dot(sum.hi, sum.hi)) * share * share;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(D) + p.eps);
    let row = Row(0u, (p.row + n) * (p.n_rot / 2u), scale);
    for (var e = lane.local; e < EIGHTS; e += WG) {
        let i = 8u * e;
        let lo = vec4(
            rotated(row, i), rotated(row, i + 1u), rotated(row, i + 2u), rotated(row, i + 3u),
        );
        let hi = vec4(
            rotated(row, i + 4u), rotated(row, i + 5u), rotated(row, i + 6u), rotated(row, i + 7u),
        );
        let at = places_$T(0u, 0u, pooled_eight((first - p.pooled_first) / p.ratio, e));
        let packed = pack_$T(Eight(lo, hi));
        pooled[at.x] = packed.a;
        if at.y != at.x { pooled[at.y] = packed.b; }
    }
}
