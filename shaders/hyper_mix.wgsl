// m[t][i] = sum over streams c of sigmoid(g[t][c][i]) n[t][c][i], and y[t][i] = 0
// spec/architectures.md 4.5.2. An invocation makes four values of m: each reads 8 bytes a
// stream, writes 8. With `whole` m is written as whole numbers besides.

#import shared/activation
#import shared/grid
#if whole
#import shared/quantise
#endif

struct Params {
    total: u32,     // values of m
    width: u32,     // n_embd
    streams: u32,
}

@group(0) @binding(0) var<storage, read> n: array<f32>;         // [n][streams][width]
@group(0) @binding(1) var<storage, read> g: array<f32>;         // [n][streams][width]
@group(0) @binding(2) var<storage, read_write> m: array<f32>;   // [n][width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [n][width]
#if whole
@group(0) @binding(4) var<storage, read_write> whole: array<u32>;  // m as whole numbers
#endif
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let out = 4u * (flat_workgroup(id, groups) * WG + local);
    var sums: vec4<f32>;
    for (var k = 0u; k < 4u; k++) {
        let at = min(out + k, p.total - 1u);
        let first = at / p.width * p.streams * p.width + at % p.width;
        for (var c = 0u; c < p.streams; c++) {
            let i = first + c * p.width;
            sums[k] += sigmoid(g[i]) * n[i];
        }
    }
    for (var k = 0u; k < 4u; k++) {
        if out + k < p.total {
            m[out + k] = sums[k];
            y[out + k] = 0.0;
        }
    }
#if whole
    quantise(local, out / 4u, sums, out < p.total);
#endif
}
