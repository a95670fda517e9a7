// result = (index of the largest logit, fault): the lowest index of equals; fault is 1 if a logit is
// NaN or plus infinity, or if all are minus infinity. Two dispatches: each workgroup finds the
// best of its share of the logits, then (`merge`) one workgroup the best of those. 4 bytes and 5
// operations a logit.
//
// Logits are compared as integers: a compiler may assume that no float is NaN or infinite.

struct Params {
    width: u32,
    parts: u32,  // workgroups of the first dispatch
}

@group(0) @binding(0) var<storage, read_write> result: array<vec2<u32>>;  // [1 + parts], the parts (key, index)
#if !merge
@group(0) @binding(1) var<storage, read> logits: array<u32>;              // [width] f32 bits
#endif
@group(1) @binding(0) var<uniform> p: Params;

const WG: u32 = 256u;
const OF_MINUS_INFINITY: u32 = 0x007fffffu;
const OF_INFINITY: u32 = 0xff800000u;
const OF_NAN: u32 = 0xffffffffu;

var<workgroup> best: array<vec2<u32>, WG>;

// Orders f32 bits as unsigned numbers; -0 counts as +0, NaN of either sign as the largest.
fn key(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) > 0x7f800000u { return OF_NAN; }
    if bits == 0x80000000u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    var own = vec2(0u);
#if merge
    for (var i = lane; i < p.parts; i += WG) { own = better(own, result[1u + i]); }
#else
    for (var i = group.x * WG + lane; i < p.width; i += p.parts * WG) {
        own = better(own, vec2(key(logits[i]), i));
    }
#endif
    best[lane] = own;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step { best[lane] = better(best[lane], best[lane + step]); }
    }
    if lane != 0u { return; }
#if merge
    let usable = best[0].x > OF_MINUS_INFINITY && best[0].x < OF_INFINITY;
    result[0] = vec2(best[0].y, select(1u, 0u, usable));
#else
    result[1u + group.x] = best[0];
#endif
}
