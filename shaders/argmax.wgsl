// result = (index of the largest logit, fault): the lowest index of equals; fault is not 0 if a
// logit is NaN or plus infinity, or if all are minus infinity. 4 bytes a logit, one workgroup.
//
// Tests for NaN and infinity look at bits: a compiler may assume that neither occurs.

struct Params {
    width: u32,
}

@group(0) @binding(0) var<storage, read> logits: array<u32>;         // f32 bits [width]
@group(0) @binding(1) var<storage, read_write> result: array<u32>;   // [2]
@group(1) @binding(0) var<uniform> p: Params;

const WG: u32 = 256u;
const NO_INDEX: u32 = 0xffffffffu;
var<workgroup> best_key: array<u32, WG>;
var<workgroup> best_index: array<u32, WG>;
var<workgroup> faults: array<u32, WG>;

// Orders f32 bits as unsigned numbers; -0 counts as +0, minus infinity as 0.
fn key(bits: u32) -> u32 {
    if bits == 0xff800000u { return 0u; }
    if (bits & 0x7fffffffu) == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
    var k = 0u;
    var index = NO_INDEX;
    var fault = 0u;
    for (var i = local; i < p.width; i += WG) {
        let bits = logits[i];
        // NaN of either sign, or plus infinity.
        fault |= u32((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u);
        let candidate = key(bits);
        if candidate > k {
            k = candidate;
            index = i;
        }
    }
    best_key[local] = k;
    best_index[local] = index;
    faults[local] = fault;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if local < step {
            let other = local + step;
            faults[local] |= faults[other];
            let better = best_key[other] > best_key[local]
                || (best_key[other] == best_key[local] && best_index[other] < best_index[local]);
            if better {
                best_key[local] = best_key[other];
                best_index[local] = best_index[other];
            }
        }
    }
    if local == 0u {
        result[0] = best_index[0];
        result[1] = faults[0] | u32(best_index[0] == NO_INDEX);
    }
}
