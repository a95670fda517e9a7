// y[first + t][o] += sum_s weights[first + t][s] * d[t][s][o] (spec/architectures.md 1.5). Reads
// 4 k bytes a value, 2 k operations. With `shared`, gates[t] * shared_out[t][o] comes to the sum.

#import shared/grid

struct Params {
    first: u32,  // token that d row 0 belongs to
    n: u32,
    k: u32,
    width: u32,
}

@group(0) @binding(0) var<storage, read> d: array<f32>;         // [n][k][width]
@group(0) @binding(1) var<storage, read> weights: array<f32>;   // [token][k]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [token][width]
#if shared
@group(0) @binding(3) var<storage, read> gates: array<f32>;        // [token]
@group(0) @binding(4) var<storage, read> shared_out: array<f32>;   // [token][width]
#endif
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_workgroup(id, groups) * WG + local;
    if i >= p.n * p.width { return; }
    let t = i / p.width;
    var sum = 0.0;
    for (var s = 0u; s < p.k; s++) {
        sum += weights[(p.first + t) * p.k + s] * d[(t * p.k + s) * p.width + i % p.width];
    }
    let at = p.first * p.width + i;
#if shared
    sum += gates[p.first + t] * shared_out[at];
#endif
    y[at] += sum;
}
