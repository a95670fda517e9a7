// `gated_delta_step.wgsl` for software: an invocation works on a column of S and waits for no other.
// All read the same q and k at a time. S is read twice and written once a token, from cache but for
// the first time: 12 bytes and 7 operations a value and token.

#import shared/grid
#import shared/delta_gates
#import shared/delta_heads

const WG: u32 = $WG;  // columns a workgroup, of one head

struct Params {
    heads: Heads,
    first: u32,  // row of the first token in u, gates and o
    end: u32,    // one past that of the last
}

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;          // [step's n][2 K d + V d]
@group(0) @binding(1) var<storage, read> gates: array<f32>;            // [step's n][alpha V, beta V]
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;          // [V]
@group(0) @binding(3) var<storage, read> ssm_a: array<f32>;            // [V]
@group(0) @binding(4) var<storage, read_write> state: array<f32>;      // [V][d_k][d_v]
@group(0) @binding(5) var<storage, read_write> o: array<f32>;          // [step's n][V d_v]
@group(0) @binding(8) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let d = 4u * p.heads.quads;
    let head = workgroup / (d / WG);
    if head >= p.heads.value { return; }
    let column = workgroup % (d / WG) * WG + local;
    let place = head * d * d + column;
    for (var t = p.first; t < p.end; t++) {
        let q_quad = q_start(t, head);
        let k_quad = k_start(t, head);
        // S^T k and S^T q from raw q and k and the state before the update.
        var s_k = 0.0;
        var s_q = 0.0;
        var dots = vec3<f32>();
        for (var quad = 0u; quad < p.heads.quads; quad++) {
            let q = u[q_quad + quad];
            let k = u[k_quad + quad];
            let s = rows(place + 4u * quad * d, d);
            s_k += dot(k, s);
            s_q += dot(q, s);
            dots += vec3(dot(q, q), dot(k, k), dot(q, k));
        }
        let gate = 2u * t * p.heads.value + head;
        let decay = exp(log_decay(gates[gate], dt_bias[head], ssm_a[head]));
        let rate = sigmoid(gates[gate + p.heads.value]);
        let v = u[v_start(t, head) + column / 4u][column % 4u];
        let scale_q = inverse_norm(dots.x) / sqrt(f32(d));
        let scale_k = inverse_norm(dots.y);
        let delta = rate * (v - decay * scale_k * s_k);
        o[(t * p.heads.value + head) * d + column] =
            scale_q * (decay * s_q + dots.z * scale_k * delta);
        let change = scale_k * delta;
        for (var quad = 0u; quad < p.heads.quads; quad++) {
            let i = place + 4u * quad * d;
            let s = decay * rows(i, d) + u[k_quad + quad] * change;
            state[i] = s.x;
            state[i + d] = s.y;
            state[i + 2u * d] = s.z;
            state[i + 3u * d] = s.w;
        }
    }
}

// Four rows of a column of S.
fn rows(i: u32, d: u32) -> vec4<f32> {
    return vec4(state[i], state[i + d], state[i + 2u * d], state[i + 3u * d]);
}
