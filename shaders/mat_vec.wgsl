// y[t][o] = epilogue(sum_i W[o][i] x[t][i]) for at most $N rows of x (spec/architectures.md, matrix
// convention). Reads each weight once for all of them: bound by the weights' bytes.
//
// $LANES invocations share a row, run by run; each works on ROWS rows, so that x is loaded once
// for all of these. Their sums meet in the subgroup or in workgroup memory, added in the same order
// wherever the row lies: results do not depend on how the matrix is split. With LANES=1, for software,
// each has rows of its own, and all read the same values of x at a time.
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
#if !LANES=1
var<workgroup> partial: array<f32, ROWS * N * WG>;
#endif
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
#if LANES=1
    if start + local * ROWS >= high { return; }
#endif

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
#if experts
    let first_y = pair;
#else
    let first_y = 0u;
#endif
#if subgroup
    var sums = row_sums(lane, base, x_rows);
    for (var s = 0u; s < ROWS * N; s++) { sums[s] = subgroupAdd(sums[s]); }
    if lane == 0u { finish_rows(sums, start + group * ROWS, low, high, top, first_y); }
#else
    let sums = row_sums(lane, base, x_rows);
#if LANES=1
    finish_rows(sums, start + group * ROWS, low, high, top, first_y);
#else
    for (var s = 0u; s < ROWS * N; s++) {
        partial[s * WG + local] = sums[s];
    }
    workgroupBarrier();

    for (var i = local; i < TILE * N; i += WG) {
        let row = start + i % TILE;
        let y_row = first_y + i / TILE;
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
#endif
}

// Writes `sums` of the rows of W from `start` on that lie from `low` to `high`, to rows of y from
// `first_y` on.
fn finish_rows(
    sums: array<f32, ROWS * N>,
    start: u32,
    low: u32,
    high: u32,
    top: u32,
    first_y: u32,
) {
    for (var r = 0u; r < ROWS; r++) {
        let row = start + r;
        if row < low || row >= high { continue; }
        let o = row - top;
        for (var t = 0u; t < N; t++) {
            let y_row = first_y + t;
            if y_row >= p.n { break; }
            let v = sums[r * N + t];
            if p.epilogue != GATED {
                finish(y_row * p.n_out + o, v);
            } else if r % 2u == 0u {
                y[(y_row * p.n_out + o) / 2u] = silu(v) * sums[(r + 1u) % ROWS * N + t];
            }
        }
    }
}

#if !subgroup
#if !LANES=1
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
#endif
