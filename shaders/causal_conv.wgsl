// u[t][ch] = silu(sum_j w[ch][j] * x[t - (taps-1-j) * dilation][ch]), x before the first token =
// tail; then tail = the last (taps-1) * dilation rows of x. `add` adds to u instead.
// spec/architectures.md 1.4 step 2, 4.5.3. One invocation a channel and BLOCK tokens: reads x once from
// memory (taps-1 times more from cache), writes u once: 8 bytes (`add`: 12) and 2 * taps operations
// a value.
//
// Only the first block reads the tail, and each invocation there writes the values it read itself:
// nothing else sees them in between.

#import shared/grid
#import shared/activation

const WG: u32 = 64u;
const BLOCK: u32 = 32u;    // tokens; at least HISTORY
const TAPS: u32 = $TAPS;
const DILATION: u32 = $DILATION;
const HISTORY: u32 = (TAPS - 1u) * DILATION;

struct Params {
    first: u32,  // row of the first token in x and u
    n: u32,
    channels: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;              // [step's n][channels]
@group(0) @binding(1) var<storage, read> w: array<f32>;              // [channels][taps]
@group(0) @binding(2) var<storage, read_write> tail: array<f32>;     // [HISTORY][channels]
@group(0) @binding(3) var<storage, read_write> u: array<f32>;        // [step's n][channels]
@group(0) @binding(8) var<uniform> p: Params;

// Row `t` of the tail followed by x.
fn input(t: u32, channel: u32) -> f32 {
    if t < HISTORY { return tail[t * p.channels + channel]; }
    return x[(p.first + t - HISTORY) * p.channels + channel];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let strips = (p.channels + WG - 1u) / WG;
    let workgroup = flat_workgroup(id, groups);
    let channel = workgroup % strips * WG + local;
    let first = workgroup / strips * BLOCK;
    if channel >= p.channels || first >= p.n { return; }
    for (var t = first; t < min(first + BLOCK, p.n); t++) {
        var sum = 0.0;
        for (var j = 0u; j < TAPS; j++) {
            sum += w[channel * TAPS + j] * input(t + j * DILATION, channel);
        }
#if add
        u[(p.first + t) * p.channels + channel] += silu(sum);
#else
        u[(p.first + t) * p.channels + channel] = silu(sum);
#endif
    }
    if first == 0u {
        // Row i takes row n + i, which no earlier step of the loop has overwritten.
        for (var i = 0u; i < HISTORY; i++) {
            tail[i * p.channels + channel] = input(p.n + i, channel);
        }
    }
}
