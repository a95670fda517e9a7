// y[t][o] = epilogue(sum_i W[o][i] x[t][i]) for many rows of x (spec/architectures.md, matrix
// convention). A workgroup makes a tile of 64 rows of W times $TM rows of x, 4 x 4 an invocation;
// W and x are read once a tile: (64 + $TM) loads for 64 * $TM multiplications of f32.
//
// Each step takes one unit of 32 weights of every row, dequantised to workgroup memory, and the
// values of x that belong to it: both in the unit's order, whatever that is.
//
// With `experts` a tile of x is the pairs (token, slot) of one expert, from the lists of
// `expert_lists.wgsl`: W is the expert's part of a stack, x row x_first + pair / share, y row pair.

#import shared/grid
#import shared/product

#if experts
@group(0) @binding(3) var<storage, read> pairs: array<u32>;        // [n] sorted by expert
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;  // expert, first in pairs, count
#endif

const TN: u32 = 64u;
const TM: u32 = $TM;
const WG: u32 = TM * TN / 16u;
const UNITS: u32 = BLOCK / 32u;

var<workgroup> w_tile: array<vec4<f32>, 32u * TN / 4u>;  // [weight of the unit][row / 4]
var<workgroup> x_tile: array<vec4<f32>, 32u * TM / 4u>;  // [weight of the unit][x row / 4]

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
#if experts
    // Entry 0 holds the number of tiles, the grid is for the most there can be.
    let tile = workgroup / p.row_tiles;
    if tile >= tiles[0].x { return; }
    let entry = tiles[tile + 1u];
    let top = entry.x * p.n_out;
    let start = top + workgroup % p.row_tiles * TN;
    let first = entry.y;
    let count = entry.z;
#else
    // Workgroups next to each other share rows of W.
    let tiles = (p.n + TM - 1u) / TM;
    let top = 0u;
    let start = p.part.first_row + workgroup / tiles * TN;
    let first = workgroup % tiles * TM;
    let count = min(p.n - first, TM);
#endif
    // The rows of this tile that exist and lie in this part.
    let low = max(start, p.part.first_row);
    let high = min(min(start + TN, top + p.n_out), p.part.first_row + p.part.rows);
    if low >= high { return; }

    // What this invocation loads: runs of one row of W, vec4s of one row of x.
    let w_slot = local % TN;
    let base = (clamp(start + w_slot, low, high - 1u) - p.part.first_row) * p.part.row_blocks;
    let x_slot = local % TM;
#if experts
    let x_row = p.x_first + pairs[first + min(x_slot, count - 1u)] / p.share;
#else
    let x_row = first + min(x_slot, count - 1u);
#endif
    // What it computes: rows 4 * w_four .. of W times rows 4 * x_four .. of x.
    let w_four = local % (TN / 4u);
    let x_four = local / (TN / 4u);
    var sums: mat4x4<f32>;
    for (var u = 0u; u < p.part.row_blocks * UNITS; u++) {
        let block = u / UNITS;
        let unit = u % UNITS;
        workgroupBarrier();
        for (var side = local / TN; side < 2u; side += max(WG / TN, 1u)) {
            let run = load_run(base + block, unit, side);
            put_w(16u * side, w_slot, run[0]);
            put_w(16u * side + 4u, w_slot, run[1]);
            put_w(16u * side + 8u, w_slot, run[2]);
            put_w(16u * side + 12u, w_slot, run[3]);
        }
        for (var c = local / TM; c < 8u; c += WG / TM) {
            let i = block * BLOCK + run_start(unit, c >> 2u) + 4u * (c & 3u);
            put_x(4u * c, x_slot, x4(x_row, i));
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let a = w_tile[k * (TN / 4u) + w_four];
            let b = x_tile[k * (TM / 4u) + x_four];
            sums[0] += a * b.x;
            sums[1] += a * b.y;
            sums[2] += a * b.z;
            sums[3] += a * b.w;
        }
    }
    let row = start + 4u * w_four;
    write(sums[0], row, low, high, top, first, 4u * x_four, count);
    write(sums[1], row, low, high, top, first, 4u * x_four + 1u, count);
    write(sums[2], row, low, high, top, first, 4u * x_four + 2u, count);
    write(sums[3], row, low, high, top, first, 4u * x_four + 3u, count);
}

fn put_w(k: u32, slot: u32, v: vec4<f32>) {
    let i = k * (TN / 4u) + slot / 4u;
    w_tile[i][slot % 4u] = v.x;
    w_tile[i + TN / 4u][slot % 4u] = v.y;
    w_tile[i + 2u * (TN / 4u)][slot % 4u] = v.z;
    w_tile[i + 3u * (TN / 4u)][slot % 4u] = v.w;
}

fn put_x(k: u32, slot: u32, v: vec4<f32>) {
    let i = k * (TM / 4u) + slot / 4u;
    x_tile[i][slot % 4u] = v.x;
    x_tile[i + TM / 4u][slot % 4u] = v.y;
    x_tile[i + 2u * (TM / 4u)][slot % 4u] = v.z;
    x_tile[i + 3u * (TM / 4u)][slot % 4u] = v.w;
}

// Finishes four rows of W from `row` on, for x row `m` of `count` in the tile.
fn write(v: vec4<f32>, row: u32, low: u32, high: u32, top: u32, first: u32, m: u32, count: u32) {
    if m >= count { return; }
#if experts
    let y_row = pairs[first + m];
#else
    let y_row = first + m;
#endif
    let i = y_row * p.n_out + row - top;
    if p.epilogue == GATED {
        // n_out, and the parts' first rows, are even.
        if row >= low && row < high { y[i / 2u] = silu(v.x) * v.y; }
        if row + 2u >= low && row + 2u < high { y[i / 2u + 1u] = silu(v.z) * v.w; }
        return;
    }
    if row >= low && row < high { finish(i, v.x); }
    if row + 1u >= low && row + 1u < high { finish(i + 1u, v.y); }
    if row + 2u >= low && row + 2u < high { finish(i + 2u, v.z); }
    if row + 3u >= low && row + 3u < high { finish(i + 3u, v.w); }
}
