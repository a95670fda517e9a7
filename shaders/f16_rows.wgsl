// The rows of x in f16 for `coop_product.wgsl`, each divided by a power of two of its own so that
// its largest value is within [8, 16): a product with a weight, and a sum of some, is then far from
// f16's end at 65504 for drivers that round them, and what is lost of small values is 2^-29 of the
// largest. Past the values, which zeros fill to a multiple of 32, 8 halves keep the exponent (and
// rows off each other's memory channel). One workgroup a row; reads 4 bytes a value twice, writes 2.

#import shared/grid
#import shared/reduce
#import shared/activations

struct Params {
    first: u32,  // row to start from
    n: u32,
    n_in: u32,
}

#if odd
@group(0) @binding(0) var<storage, read> x: array<f32>;            // [n][n_in]
#else
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;      // [n][n_in / 4]
#endif
@group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;  // [n][values / 4 + 2]
@group(0) @binding(8) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    if workgroup >= p.n { return; }
    let row = p.first + workgroup;
    let quads = (p.n_in + 31u) / 32u * 8u;
    var most = 0.0;
    for (var i = lane.local; i < quads; i += WG) {
        let v = abs(x4(row, 4u * i));
        most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
    }
    most = workgroup_max(most, lane);
    // The exponent of a normal number; less than that is 0 to what else f16 keeps.
    let exponent = clamp(i32(bitcast<u32>(most) >> 23u) - 127 - 3, -126, 126);
    let scale = bitcast<f32>(u32(127 - exponent) << 23u);
    let first = row * (quads + 2u);
    for (var i = lane.local; i < quads; i += WG) {
        let v = scale * x4(row, 4u * i);
        y[first + i] = vec2(pack2x16float(v.xy), pack2x16float(v.zw));
    }
    if lane.local < 2u {
        y[first + quads + lane.local] = vec2(pack2x16float(vec2(f32(exponent), 0.0)), 0u);
    }
}
