// counts[e] = how many of the n pairs (token, slot) chose expert e. One workgroup an expert reads
// all ids: n * n_expert reads of cached words, no atomics.

#import shared/grid

struct Params {
    first: u32,  // pair to start from
    n: u32,
    n_expert: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<u32>;            // [token][slot] experts
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;   // [n_expert]
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;
var<workgroup> found: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let expert = flat_workgroup(id, groups);
    if expert >= p.n_expert { return; }
    var mine = 0u;
    for (var i = local; i < p.n; i += WG) {
        if min(ids[p.first + i], p.n_expert - 1u) == expert { mine++; }
    }
    found[local] = mine;
    workgroupBarrier();
    if local == 0u {
        var all = 0u;
        for (var l = 0u; l < WG; l++) { all += found[l]; }
        counts[expert] = all;
    }
}
