// y[t][o] = epilogue(sum_i W[o][i] x[t][i]) for at most $N rows of x (spec/architectures.md, matrix
// convention). Reads each weight once for all of them: bound by the weights' bytes.
//
// $LANES invocations share a row, run by run; each works on ROWS rows, so that x is loaded once
// for all of these. Their sums meet in workgroup memory, added in the same order wherever the row lies:
// results do not depend on how the matrix is split.
//
// With `experts` a workgroup works for one pair (token, slot): W is the expert's part of a stack,
// x row x_first + pair / share, y row pair.

#import shared/grid
#import shared/product
#import shared/row_sums

#if experts
@group(0) @binding(3) var<storage, read> ids: array<u32>;          // [token][slot] experts
#endif

const WG: u32 = 64u;
const N: u32 = $N;
const ROWS: u32 = $ROWS;
const LANES: u32 = $LANES;
const TILE: u32 = WG / LANES * ROWS;  // rows a workgroup, even

#if !subgroup
var<workgroup> partial: array<f32, ROWS * N * WG>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
#if subgroup
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
#endif
) {
    let workgroup = flat_workgroup(id, groups);
#if experts
    let pair = workgroup / p.row_tiles;
    if pair >= p.n { return; }
    let top = min(ids[p.first + pair], p.n_expert - 1u) * p.n_out;
    let start = top + workgroup % p.row_tiles * TILE;
#else
    let top = 0u;
    let start = p.part.first_row + workgroup * TILE;
#endif
    // The rows of this tile that exist and lie in this part.
    let low = max(start, p.part.first_row);
    let high = min(min(start + TILE, top + p.n_out), p.part.first_row + p.part.rows);
    if low >= high { return; }

#if subgroup
    let lane = invocation;
    let group = subgroup;
#else
    let lane = local % LANES;
    let group = local / LANES;
#endif
    var base: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let row = clamp(start + group * ROWS + r, low, high - 1u) - p.part.first_row;
        base[r] = row * p.part.row_blocks;
    }
    var x_rows: array<u32, N>;
    for (var t = 0u; t < N; t++) {
#if experts
        x_rows[t] = p.x_first + pair / p.share;
#else
        x_rows[t] = min(t, p.n - 1u);
#endif
    }
#if subgroup
    var sums = row_sums(lane, base, x_rows);
    for (var s = 0u; s < ROWS * N; s++) { sums[s] = subgroupAdd(sums[s]); }
    if lane != 0u { return; }
    for (var r = 0u; r < ROWS; r++) {
        let row = start + group * ROWS + r;
        if row < low || row >= high { continue; }
        let o = row - top;
        for (var t = 0u; t < N; t++) {
#if experts
            let y_row = pair;
#else
            let y_row = t;
            if t >= p.n { break; }
#endif
            let v = sums[r * N + t];
            if p.epilogue != GATED {
                finish(y_row * p.n_out + o, v);
            } else if r % 2u == 0u {
                y[(y_row * p.n_out + o) / 2u] = silu(v) * sums[(r + 1u) % ROWS * N + t];
            }
        }
    }
#else
    let sums = row_sums(lane, base, x_rows);
    for (var s = 0u; s < ROWS * N; s++) {
        partial[s * WG + local] = sums[s];
    }
    workgroupBarrier();

    for (var i = local; i < TILE * N; i += WG) {
        let row = start + i % TILE;
#if experts
        let y_row = pair;
#else
        let y_row = i / TILE;
#endif
        if row < low || row >= high || y_row >= p.n { continue; }
        let o = row - top;
        let v = total(i % TILE, i / TILE);
        if p.epilogue != GATED {
            finish(y_row * p.n_out + o, v);
        } else if o % 2u == 0u {
            y[(y_row * p.n_out + o) / 2u] = silu(v) * total(i % TILE + 1u, i / TILE);
        }
    }
#endif
}

#if !subgroup
// The sum of row `row` of the tile for x row t.
fn total(row: u32, t: u32) -> f32 {
    let first = (row % ROWS * N + t) * WG + row / ROWS * LANES;
    var sum = 0.0;
    for (var l = 0u; l < LANES; l += 8u) {
        // Short enough for compilers to unroll: loads of eight are under way together.
        for (var k = 0u; k < 8u; k++) { sum += partial[first + l + k]; }
    }
    return sum;
}
#endif
