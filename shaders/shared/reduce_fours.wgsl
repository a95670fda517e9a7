// Four sums over a workgroup at a time, as `workgroup_sum` of shared/reduce: one round of barriers.

#import shared/reduce

var<workgroup> scratch_of_fours: array<vec4<f32>, WG>;

#if subgroup
fn workgroup_sums(x: vec4<f32>, lane: Lane) -> vec4<f32> {
    let partial = subgroupAdd(x);
    workgroupBarrier();
    if lane.invocation == 0u { scratch_of_fours[lane.subgroup] = partial; }
    workgroupBarrier();
    var total: vec4<f32>;
    for (var i = 0u; i < lane.subgroups; i++) { total += scratch_of_fours[i]; }
    return total;
}
#else
fn workgroup_sums(x: vec4<f32>, lane: Lane) -> vec4<f32> {
    workgroupBarrier();
    scratch_of_fours[lane.local] = x;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane.local < step { scratch_of_fours[lane.local] += scratch_of_fours[lane.local + step]; }
    }
    workgroupBarrier();
    return scratch_of_fours[0];
}
#endif
