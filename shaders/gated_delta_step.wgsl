// Per value head, token by token:
//   S = e^g S;  delta = beta (v - S^T k);  S += k delta^T;  o = S^T q
// q and k divided by their L2 norms, q also by sqrt(d_k).
// spec/architectures.md 1.4 steps 3 to 6. Columns of S are independent: a workgroup holds COLUMNS
// quads of them in registers, 4 rows of one quad in each invocation, for all tokens. S is read
// and written once, 8 bytes a value; 7 operations a value and token.
//
// One reduction a token gives S^T k, S^T q, |q|^2, |k|^2 and q.k at once, from raw q and k and the
// state before the update: o = e^g S^T q + (q.k) delta.

#import shared/grid
#import shared/delta_gates
#import shared/delta_heads

const D: u32 = $D;                           // d_k = d_v
const QUADS: u32 = D / 4u;
const COLUMNS: u32 = $COLUMNS;               // quads of columns a workgroup
const WG: u32 = COLUMNS * QUADS;
const SUMS: u32 = 2u * COLUMNS + 1u;         // quads that one token reduces
const FAN: u32 = min(8u, QUADS);             // partial sums added in the first stage
const PARTS: u32 = QUADS / FAN;

struct Params {
    heads: Heads,
    first: u32,  // row of the first token in u, gates and o
    end: u32,    // one past that of the last
}

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [step's n][2 K d + V d]
@group(0) @binding(1) var<storage, read> gates: array<f32>;                // [step's n][alpha V, beta V]
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;              // [V]
@group(0) @binding(3) var<storage, read> ssm_a: array<f32>;                // [V]
@group(0) @binding(4) var<storage, read_write> state: array<vec4<f32>>;    // [V][d_k][d_v]
@group(0) @binding(5) var<storage, read_write> o: array<vec4<f32>>;        // [step's n][V d_v]
@group(0) @binding(8) var<uniform> p: Params;

var<workgroup> partial: array<vec4<f32>, QUADS * SUMS>;
var<workgroup> merged: array<vec4<f32>, PARTS * SUMS>;

fn total(i: u32) -> vec4<f32> {
    var sum = merged[i];
    for (var part = 1u; part < PARTS; part++) { sum += merged[part * SUMS + i]; }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let head = workgroup / (QUADS / COLUMNS);
    if head >= p.heads.value { return; }
    let lane = local % COLUMNS;
    let column = workgroup % (QUADS / COLUMNS) * COLUMNS + lane;
    let rows = local / COLUMNS;
    let place = (head * D + rows * 4u) * QUADS + column;
    var s0 = state[place];
    var s1 = state[place + QUADS];
    var s2 = state[place + 2u * QUADS];
    var s3 = state[place + 3u * QUADS];
    for (var t = p.first; t < p.end; t++) {
        let q = u[q_start(t, head) + rows];
        let k = u[k_start(t, head) + rows];
        let v = u[v_start(t, head) + column];
        let gate = 2u * t * p.heads.value + head;
        let decay = exp(log_decay(gates[gate], dt_bias[head], ssm_a[head]));
        let rate = sigmoid(gates[gate + p.heads.value]);

        let row = rows * SUMS;
        partial[row + lane] = k.x * s0 + k.y * s1 + k.z * s2 + k.w * s3;
        partial[row + COLUMNS + lane] = q.x * s0 + q.y * s1 + q.z * s2 + q.w * s3;
        if lane == 0u {
            partial[row + 2u * COLUMNS] = vec4(dot(q, q), dot(k, k), dot(q, k), 0.0);
        }
        workgroupBarrier();
        for (var i = local; i < PARTS * SUMS; i += WG) {
            let first = i / SUMS * FAN * SUMS + i % SUMS;
            var sum = partial[first];
            for (var j = 1u; j < FAN; j++) { sum += partial[first + j * SUMS]; }
            merged[i] = sum;
        }
        workgroupBarrier();
        let dots = total(2u * COLUMNS);
        let scale_q = inverse_norm(dots.x) / sqrt(f32(D));
        let scale_k = inverse_norm(dots.y);
        let delta = rate * (v - decay * scale_k * total(lane));
        if rows == 0u {
            o[(t * p.heads.value + head) * QUADS + column] =
                scale_q * (decay * total(COLUMNS + lane) + dots.z * scale_k * delta);
        }
        let change = scale_k * delta;
        s0 = decay * s0 + k.x * change;
        s1 = decay * s1 + k.y * change;
        s2 = decay * s2 + k.z * change;
        s3 = decay * s3 + k.w * change;
    }
    state[place] = s0;
    state[place + QUADS] = s1;
    state[place + 2u * QUADS] = s2;
    state[place + 3u * QUADS] = s3;
}
