// What choosing a token takes: the index of the largest logit (the lowest of equals), a fault (1 if a
// logit is NaN or plus infinity, or if all are minus infinity), and the largest logits in any order.
// Of these all are there that are no less than the `wanted`th largest, and a few more, if there is
// room for them; their count tells. Three dispatches, 8 bytes and 10 operations a logit:
// `stage=scan`: each workgroup finds the best of its share of the logits, and the largest of each of
// GROUPS parts of the share; `stage=merge`: one workgroup finds the best of those, and the `wanted`th
// largest of all parts' largest: no fewer logits are as large; `stage=collect`: those that are.
//
// Logits are compared as integers: a compiler may assume that no float is NaN or infinite.

struct Params {
    width: u32,
    parts: u32,   // workgroups of the scan
    wanted: u32,
    room: u32,
    bests: u32,   // where the parts' (key, index) are in `choice`
    maxima: u32,  // where their groups' keys are
}

// index, fault, threshold, count; [room] (index, f32 bits); [parts] (key, index); [parts][GROUPS] keys
#if stage=collect
@group(0) @binding(0) var<storage, read_write> choice: array<atomic<u32>>;
#else
@group(0) @binding(0) var<storage, read_write> choice: array<u32>;
#endif
#if stage=scan|collect
@group(0) @binding(1) var<storage, read> logits: array<u32>;   // [width] f32 bits
#endif
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 256u;
const GROUPS: u32 = 32u;
const PARTS: u32 = 64u;  // no fewer than p.parts
const OF_MINUS_INFINITY: u32 = 0x007fffffu;
const OF_INFINITY: u32 = 0xff800000u;
const OF_NAN: u32 = 0xffffffffu;

// Orders f32 bits as unsigned numbers; -0 counts as +0, NaN of either sign as the largest.
fn key(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) > 0x7f800000u { return OF_NAN; }
    if bits == 0x80000000u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

#if stage=scan|merge
var<workgroup> best: array<vec2<u32>, WG>;  // key, index

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn find_best(lane: u32) {
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step { best[lane] = better(best[lane], best[lane + step]); }
    }
}
#endif

#if stage=merge
const SHARE: u32 = PARTS * GROUPS / WG;
var<workgroup> reached: atomic<u32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
#if stage=scan
    var own = vec2(0u);
    for (var i = group.x * WG + lane; i < p.width; i += p.parts * WG) {
        own = better(own, vec2(key(logits[i]), i));
    }
    best[lane] = own;
    workgroupBarrier();
    if lane < GROUPS {
        var most = 0u;
        for (var i = lane; i < WG; i += GROUPS) { most = max(most, best[i].x); }
        choice[p.maxima + group.x * GROUPS + lane] = most;
    }
    find_best(lane);
    if lane == 0u {
        choice[p.bests + 2u * group.x] = best[0].x;
        choice[p.bests + 2u * group.x + 1u] = best[0].y;
    }
#endif
#if stage=merge
    var own = vec2(0u);
    for (var i = lane; i < p.parts; i += WG) {
        own = better(own, vec2(choice[p.bests + 2u * i], choice[p.bests + 2u * i + 1u]));
    }
    best[lane] = own;
    find_best(lane);
    var keys: array<u32, SHARE>;
    for (var k = 0u; k < SHARE; k++) {
        let i = k * WG + lane;
        keys[k] = select(0u, choice[p.maxima + min(i, p.parts * GROUPS - 1u)], i < p.parts * GROUPS);
    }
    // The largest number that `wanted` keys reach, bit by bit.
    var threshold = 0u;
    for (var bit = 0u; bit < 32u; bit++) {
        let trial = threshold | (0x80000000u >> bit);
        var count = 0u;
        for (var k = 0u; k < SHARE; k++) { count += u32(keys[k] >= trial); }
        if lane == 0u { atomicStore(&reached, 0u); }
        workgroupBarrier();
        atomicAdd(&reached, count);
        workgroupBarrier();
        if atomicLoad(&reached) >= p.wanted { threshold = trial; }
        workgroupBarrier();
    }
    if lane != 0u { return; }
    let usable = best[0].x > OF_MINUS_INFINITY && best[0].x < OF_INFINITY;
    choice[0] = best[0].y;
    choice[1] = select(1u, 0u, usable);
    choice[2] = threshold;
    choice[3] = 0u;
#endif
#if stage=collect
    let threshold = atomicLoad(&choice[2]);
    for (var i = group.x * WG + lane; i < p.width; i += p.parts * WG) {
        let bits = logits[i];
        let k = key(bits);
        // Minus infinity is never drawn.
        if k < threshold || k <= OF_MINUS_INFINITY { continue; }
        let at = atomicAdd(&choice[3], 1u);
        if at < p.room {
            atomicStore(&choice[4u + 2u * at], i);
            atomicStore(&choice[5u + 2u * at], bits);
        }
    }
#endif
}
