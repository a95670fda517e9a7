// ids[t] = the k experts with the largest logits, best first, ties to the lower index;
// weights[t][s] = scale * p_s / max(sum of the k chosen p, 2^-14), p = softmax over all experts
// spec/architectures.md 1.5. One workgroup a token. Every expert counts the experts that come
// before it in the order: that is its slot, so nothing is sorted and every slot is filled exactly
// once, whatever the logits hold. 4 bytes and E comparisons an expert, from workgroup memory.
// With `shared` one more logit than experts is the shared expert's gate (item 5).

#import shared/grid
#import shared/reduce
#if shared
#import shared/activation
#endif

const QUADS: u32 = $QUADS;    // a quarter of the experts, rounded up
const SLOTS: u32 = $SLOTS;    // k

struct Params {
    n: u32,
    experts: u32,
    stride: u32,    // logits a token
    scale: f32,
}

@group(0) @binding(0) var<storage, read> logits: array<f32>;            // [n][stride]
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;         // [n][k]
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;     // [n][k]
#if shared
@group(0) @binding(3) var<storage, read_write> gates: array<f32>;       // [n]
#endif
@group(0) @binding(8) var<uniform> p: Params;

var<workgroup> keys: array<vec4<u32>, QUADS>;
var<workgroup> chosen: array<f32, SLOTS>;    // logit of each slot

// Orders as the float does, with NaN below everything; padding is 0.
fn sort_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u { return 1u; }
    if magnitude == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn key_at(token: u32, expert: u32) -> u32 {
    if expert >= p.experts { return 0u; }
    return sort_key(bitcast<u32>(logits[token * p.stride + expert]));
}

// An equal key comes first only at a lower index: in an earlier quad every one does.
fn slot_of(expert: u32) -> u32 {
    let own = expert / 4u;
    let key = keys[own][expert % 4u];
    let lower = vec4<u32>(0u, 1u, 2u, 3u) < vec4(expert % 4u);
    var before = select(vec4<u32>(), vec4(1u), (keys[own] == vec4(key)) & lower);
    for (var quad = 0u; quad < QUADS; quad++) {
        let bar = select(key, key - 1u, quad < own);
        before += select(vec4<u32>(), vec4(1u), keys[quad] > vec4(bar));
    }
    return before.x + before.y + before.z + before.w;
}

// exp(x); NaN stays NaN, of which some drivers make a number.
fn exp_or_nan(x: f32) -> f32 {
    return select(exp(x), x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let token = flat_workgroup(id, groups);
    if token >= p.n { return; }
    for (var quad = lane.local; quad < QUADS; quad += WG) {
        let e = quad * 4u;
        keys[quad] = vec4(
            key_at(token, e), key_at(token, e + 1u), key_at(token, e + 2u), key_at(token, e + 3u)
        );
    }
    workgroupBarrier();
    for (var expert = lane.local; expert < p.experts; expert += WG) {
        let slot = slot_of(expert);
        if slot < SLOTS {
            ids[token * SLOTS + slot] = expert;
            chosen[slot] = logits[token * p.stride + expert];
        }
    }
    workgroupBarrier();
    let best = chosen[0];
    var sum = 0.0;
    for (var expert = lane.local; expert < p.experts; expert += WG) {
        sum += exp_or_nan(logits[token * p.stride + expert] - best);
    }
    let all = workgroup_sum(sum, lane);
    var picked = 0.0;
    for (var slot = 0u; slot < SLOTS; slot++) { picked += exp_or_nan(chosen[slot] - best); }
    let share = p.scale / (all * max(picked / all, 6.103515625e-5));
#if shared
    if lane.local == 0u { gates[token] = sigmoid(logits[token * p.stride + p.experts]); }
#endif
    for (var slot = lane.local; slot < SLOTS; slot += WG) {
        weights[token * SLOTS + slot] = exp(chosen[slot] - best) * share;
    }
}
