// y[t][h] = sum_s e^(m_s - M) sums_s / sum_s e^(m_s - M) l_s, times sigmoid(gate) if there is
// one: the splits' partial softmaxes (attention_decode, attention_prefill) into the output.
// spec/architectures.md 1.3 steps 5 and 6. One workgroup a (query, head): reads 4 * splits
// bytes, writes 4 bytes a value. Decoding has few workgroups and waits for loads: those of four
// splits are under way together.

#import shared/grid
#if gate
#import shared/activation
#endif

const WG: u32 = $WG;

struct Params {
    first: u32,       // of the (query, head)s
    rows: u32,        // one past the last of them
    n_head: u32,
    head_dim: u32,
    splits: u32,
    gate_token: u32,  // values from one token to the next in gate
    gate_head: u32,   // values from one head to the next in gate
    gate_first: u32,
}

@group(0) @binding(0) var<storage, read> state: array<vec2<f32>>;  // [step's n][splits][n_head] (m, l)
@group(0) @binding(1) var<storage, read> sums: array<f32>;         // [step's n][splits][n_head][head_dim]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;      // [step's n][n_head][head_dim]
#if gate
@group(0) @binding(3) var<storage, read> gate: array<f32>;         // the same, strided
#endif
@group(0) @binding(8) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = p.first + flat_workgroup(id, groups);
    if row >= p.rows { return; }
    let token = row / p.n_head;
    let head = row % p.n_head;
    let slot = token * p.splits * p.n_head + head;
    let last = p.splits - 1u;
    var largest = state[slot].x;
    for (var s = 1u; s < p.splits; s += 4u) {
        for (var k = 0u; k < 4u; k++) {
            largest = max(largest, state[slot + min(s + k, last) * p.n_head].x);
        }
    }
    for (var i = lane; i < p.head_dim; i += WG) {
        var total = 0.0;
        var sum = 0.0;
        for (var s = 0u; s < p.splits; s += 4u) {
            for (var k = 0u; k < 4u; k++) {
                let at = slot + min(s + k, last) * p.n_head;
                let part = state[at];
                let value = sums[at * p.head_dim + i];
                // The sums of an empty split were never written.
                let live = s + k < p.splits && part.y != 0.0;
                let weight = select(0.0, exp(part.x - largest), live);
                total += weight * part.y;
                sum += select(0.0, weight * value, live);
            }
        }
        var value = sum / total;
#if gate
        let source = token * p.gate_token + p.gate_first + head * p.gate_head + i;
        value *= sigmoid(gate[source]);
#endif
        y[(token * p.n_head + head) * p.head_dim + i] = value;
    }
}
