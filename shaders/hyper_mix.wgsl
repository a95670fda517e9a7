// m[t][i] = sum over streams c of sigmoid(g[t][c][i]) n[t][c][i], and y[t][i] = 0
// spec/architectures.md 4.5.2. One invocation a value of m: reads 8 bytes a stream, writes 8.

#import shared/activation
#import shared/grid

struct Params {
    total: u32,     // values of m
    width: u32,     // n_embd
    streams: u32,
}

@group(0) @binding(0) var<storage, read> n: array<f32>;         // [n][streams][width]
@group(0) @binding(1) var<storage, read> g: array<f32>;         // [n][streams][width]
@group(0) @binding(2) var<storage, read_write> m: array<f32>;   // [n][width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [n][width]
@group(1) @binding(0) var<uniform> p: Params;

const WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let out = flat_workgroup(id, groups) * WG + local;
    if out >= p.total { return; }
    let first = out / p.width * p.streams * p.width + out % p.width;
    var sum = 0.0;
    for (var c = 0u; c < p.streams; c++) {
        let i = first + c * p.width;
        sum += sigmoid(g[i]) * n[i];
    }
    m[out] = sum;
    y[out] = 0.0;
}
