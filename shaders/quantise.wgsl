// whole = x as whole numbers, for products by whole numbers. An invocation takes four values: reads 4 bytes a
// value, writes 2.5.

#import shared/grid
#import shared/quantise

struct Params {
    total: u32,     // values / 4
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;        // [n][width / 4]
@group(0) @binding(1) var<storage, read_write> whole: array<u32>;      // [n][width / 32][20]
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_workgroup(id, groups) * WG + local;
    quantise(local, i, x[min(i, p.total - 1u)], i < p.total);
}
