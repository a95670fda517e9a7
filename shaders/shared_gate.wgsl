// y[t][i] += sigmoid(sum_j g[j] * x[t][j]) * s[t][i]
// spec/architectures.md 1.5 item 5: the shared expert's gate, one scalar a token. One workgroup a
// token: 20 bytes and 5 operations a value. Decoding has one token and waits for loads: those of
// four values are under way together.

#import shared/grid
#import shared/reduce
#import shared/activation

struct Params {
    n: u32,
    width: u32,
}

@group(0) @binding(0) var<storage, read> g: array<f32>;          // [width]
@group(0) @binding(1) var<storage, read> x: array<f32>;          // [n][width]
@group(0) @binding(2) var<storage, read> s: array<f32>;          // [n][width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;    // [n][width]
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    lane: Lane,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let token = flat_workgroup(id, groups);
    if token >= p.n { return; }
    let row = token * p.width;
    var dot = 0.0;
    let last = p.width - 1u;
    for (var i = lane.local; i < p.width; i += 4u * WG) {
        for (var k = 0u; k < 4u; k++) {
            let at = i + k * WG;
            dot += select(0.0, g[min(at, last)] * x[row + min(at, last)], at < p.width);
        }
    }
    let gate = sigmoid(workgroup_sum(dot, lane));
    for (var i = lane.local; i < p.width; i += 4u * WG) {
        var gated: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let at = row + min(i + k * WG, last);
            gated[k] = y[at] + gate * s[at];
        }
        for (var k = 0u; k < 4u; k++) {
            let at = i + k * WG;
            if at < p.width { y[row + at] = gated[k]; }
        }
    }
}
