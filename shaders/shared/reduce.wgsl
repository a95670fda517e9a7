// Sum and maximum over a workgroup of $WG invocations (a power of two), the same value in every
// one of them and for any subgroup size. Every invocation must call: they hold barriers.

const WG: u32 = $WG;
var<workgroup> scratch: array<f32, WG>;

struct Lane {
    @builtin(local_invocation_index) local: u32,
#if subgroup
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
#endif
}

#if subgroup
fn workgroup_sum(x: f32, lane: Lane) -> f32 {
    let partial = subgroupAdd(x);
    workgroupBarrier();
    if lane.invocation == 0u { scratch[lane.subgroup] = partial; }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < lane.subgroups; i++) { total += scratch[i]; }
    return total;
}

fn workgroup_max(x: f32, lane: Lane) -> f32 {
    let partial = subgroupMax(x);
    workgroupBarrier();
    if lane.invocation == 0u { scratch[lane.subgroup] = partial; }
    workgroupBarrier();
    var best = scratch[0];
    for (var i = 1u; i < lane.subgroups; i++) { best = max(best, scratch[i]); }
    return best;
}
#else
fn workgroup_sum(x: f32, lane: Lane) -> f32 {
    workgroupBarrier();
    scratch[lane.local] = x;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane.local < step { scratch[lane.local] += scratch[lane.local + step]; }
    }
    workgroupBarrier();
    return scratch[0];
}

fn workgroup_max(x: f32, lane: Lane) -> f32 {
    workgroupBarrier();
    scratch[lane.local] = x;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane.local < step {
            scratch[lane.local] = max(scratch[lane.local], scratch[lane.local + step]);
        }
    }
    workgroupBarrier();
    return scratch[0];
}
#endif
