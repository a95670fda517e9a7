// y[t][o] += sum_s weights[t][s] * sum_i W_e[o][i] x[t][s][i], e the expert of slot s
// (spec/architectures.md 1.5), for few tokens: all slots of a token in one workgroup, four rows of
// W each; with LANES=1, for software, four rows of W an invocation, which goes through all slots.
// Reads each chosen expert's weights once a token. Sums in the order of `mat_vec.wgsl` and
// `expert_combine.wgsl`, which stand in for it where W is split, so results are the same.

#import shared/grid
#import shared/product
#import shared/row_sums

@group(0) @binding(3) var<storage, read> ids: array<u32>;        // [token][slot] experts
@group(0) @binding(4) var<storage, read> weights: array<f32>;    // [token][slot]
#if shared
@group(0) @binding(5) var<storage, read> gates: array<f32>;        // [token]
@group(0) @binding(6) var<storage, read> shared_out: array<f32>;   // [token][n_out]
#endif

const WG: u32 = 64u;
const N: u32 = 1u;
const ROWS: u32 = 4u;
const LANES: u32 = $LANES;
#if LANES=1
const TILE: u32 = WG * ROWS;     // rows a workgroup
#else
const TILE: u32 = ROWS;
const GROUPS: u32 = WG / LANES;  // slots at a time
const SLOTS: u32 = $SLOTS;       // no fewer than p.share, a multiple of GROUPS

#if !subgroup
var<workgroup> partial: array<f32, SLOTS * LANES * ROWS>;
#endif
var<workgroup> totals: array<f32, SLOTS * ROWS>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
#if subgroup
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
#endif
) {
    let workgroup = flat_workgroup(id, groups);
    let t = workgroup / p.row_tiles;
    if t >= p.n { return; }
    let start = workgroup % p.row_tiles * TILE;
    let slots = p.share;
    let first = p.first + t * slots;

#if LANES=1
    let row = start + local * ROWS;
    if row >= p.n_out { return; }
    var weighted: array<f32, ROWS>;
    for (var slot = 0u; slot < slots; slot++) {
        let sums = slot_sums(0u, t, slot, row);
        for (var r = 0u; r < ROWS; r++) { weighted[r] += weights[first + slot] * sums[r]; }
    }
    for (var r = 0u; r < ROWS; r++) { add(t, row + r, weighted[r]); }
#else
#if !subgroup
    let subgroup = local / LANES;
    let lane = local % LANES;
#endif
    for (var slot = subgroup; slot < slots; slot += GROUPS) {
        let sums = slot_sums(lane, t, slot, start);
        for (var r = 0u; r < ROWS; r++) {
#if subgroup
            let sum = subgroupAdd(sums[r]);
            if lane == 0u { totals[slot * ROWS + r] = sum; }
#else
            partial[(slot * ROWS + r) * LANES + lane] = sums[r];
#endif
        }
    }
#if !subgroup
    workgroupBarrier();
    for (var i = local; i < slots * ROWS; i += WG) {
        var sum = 0.0;
        for (var l = 0u; l < LANES; l++) { sum += partial[i * LANES + l]; }
        totals[i] = sum;
    }
#endif
    workgroupBarrier();
    if local < ROWS {
        var sum = 0.0;
        for (var s = 0u; s < slots; s++) { sum += weights[first + s] * totals[s * ROWS + local]; }
        add(t, start + local, sum);
    }
#endif
}

// An invocation's share in the products of ROWS rows, from `row` on, of the matrix of a slot.
fn slot_sums(lane: u32, t: u32, slot: u32, row: u32) -> array<f32, ROWS> {
    let pair = t * p.share + slot;
    let top = min(ids[p.first + pair], p.n_expert - 1u) * p.n_out;
    var base: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        base[r] = (top + min(row + r, p.n_out - 1u)) * p.part.row_blocks;
    }
    return row_sums(lane, base, array<u32, N>(pair));
}

// Adds the weighted sum of a row, if there is one, to y.
fn add(t: u32, row: u32, weighted: f32) {
    if row >= p.n_out { return; }
    let token = p.first / p.share + t;
    var sum = weighted;
#if shared
    sum += gates[token] * shared_out[token * p.n_out + row];
#endif
    y[token * p.n_out + row] += sum;
}
