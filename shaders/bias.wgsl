// y[t][i] += b[i]. 12 bytes and one addition a value.

#import shared/grid

struct Params {
    values: u32,
    width: u32,
}

@group(0) @binding(0) var<storage, read> b: array<f32>;          // [width]
@group(0) @binding(1) var<storage, read_write> y: array<f32>;    // [token][width]
@group(0) @binding(8) var<uniform> p: Params;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_workgroup(id, groups) * 256u + local;
    if i < p.values { y[i] += b[i % p.width]; }
}
