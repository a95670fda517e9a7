// y[t][o] = epilogue(sum_i W[o][i] x[t][i]) for many rows of x (spec/architectures.md, matrix
// convention). A workgroup makes a tile of 64 rows of W times $TM rows of x, each invocation 4 x 4 to
// 8 x 8 of it; W and x are read once a tile: (64 + $TM) loads for 64 * $TM multiplications of f32.
//
// Each step takes two runs of 16 weights of every row, dequantised to workgroup memory, and the
// values of x that belong to them: runs that share loads, wherever in a row they are.

#import shared/grid
#import shared/product
#import shared/product_tile

const TN: u32 = 64u;
const TM: u32 = $TM;  // 16, 32 or 64
const WG: u32 = 64u;
const RUNS: u32 = BLOCK / 16u;

// An invocation makes QW by QX blocks of 4 x 4 products, LW and LX vec4s apart.
const QW: u32 = min(TM / 16u, 2u);
const QX: u32 = max(TM / 32u, 1u);
const LW: u32 = TN / 4u / QW;
const LX: u32 = TM / 4u / QX;

// First [weight of the step][row of W / 4], then from X on [weight of the step][row of x / 4]; in
// the end the products, [row of x][row of W / 4].
const X: u32 = 32u * TN / 4u;
var<workgroup> tile: array<vec4<f32>, X + 32u * TM / 4u>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = tile_of(flat_workgroup(id, groups));
    if at.low >= at.high { return; }

    // What this invocation loads: runs of one row of W, vec4s of one row of x.
    let w_slot = local;
    let base = (clamp(at.start + w_slot, at.low, at.high - 1u) - p.part.first_row) * p.part.row_blocks;
    let x_slot = local % TM;
    let x_source = x_row(at.first + min(x_slot, at.count - 1u));
    let w_lane = local % LW;
    let x_lane = local / LW;
    var sums: array<mat4x4<f32>, QW * QX>;
    for (var first_run = 0u; first_run < p.part.row_blocks * RUNS; first_run += 2u) {
        let block = first_run / RUNS;
        workgroupBarrier();
        for (var side = 0u; side < 2u; side++) {
            let run = load_run(base + block, first_run % RUNS + side);
            let i = 16u * side * (TN / 4u) + w_slot / 4u;
            put(i, TN / 4u, w_slot % 4u, run[0]);
            put(i + TN, TN / 4u, w_slot % 4u, run[1]);
            put(i + 2u * TN, TN / 4u, w_slot % 4u, run[2]);
            put(i + 3u * TN, TN / 4u, w_slot % 4u, run[3]);
        }
        for (var c = local / TM; c < 8u; c += WG / TM) {
            let i = block * BLOCK + run_start(first_run % RUNS + (c >> 2u)) + 4u * (c & 3u);
            put(X + c * TM + x_slot / 4u, TM / 4u, x_slot % 4u, x4(x_source, i));
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k += 4u) {
            // Short enough for compilers to unroll.
            for (var j = 0u; j < 4u; j++) {
                var b: array<vec4<f32>, QX>;
                for (var q = 0u; q < QX; q++) {
                    b[q] = tile[X + (k + j) * (TM / 4u) + q * LX + x_lane];
                }
                for (var r = 0u; r < QW; r++) {
                    let a = tile[(k + j) * (TN / 4u) + r * LW + w_lane];
                    for (var q = 0u; q < QX; q++) {
                        sums[r * QX + q][0] += a * b[q].x;
                        sums[r * QX + q][1] += a * b[q].y;
                        sums[r * QX + q][2] += a * b[q].z;
                        sums[r * QX + q][3] += a * b[q].w;
                    }
                }
            }
        }
    }

    // By way of workgroup memory, so that neighbours write neighbours.
    workgroupBarrier();
    for (var r = 0u; r < QW; r++) {
        for (var q = 0u; q < QX; q++) {
            let i = 4u * (q * LX + x_lane) * (TN / 4u) + r * LW + w_lane;
            put_rows(i, sums[r * QX + q]);
        }
    }
    workgroupBarrier();
    for (var i = local; i < TN * at.count; i += WG) {
        let row = at.start + i % TN;
        if row < at.low || row >= at.high { continue; }
        let o = y_row(at.first + i / TN) * p.n_out + row - at.top;
        let v = tile[i / 4u][i % 4u];
        if p.epilogue != GATED {
            finish(o, v);
        } else if o % 2u == 0u {
            y[o / 2u] = silu(v) * tile[i / 4u][i % 4u + 1u];
        }
    }
}

fn put_rows(i: u32, products: mat4x4<f32>) {
    tile[i] = products[0];
    tile[i + TN / 4u] = products[1];
    tile[i + 2u * (TN / 4u)] = products[2];
    tile[i + 3u * (TN / 4u)] = products[3];
}

// Spreads v over four entries `step` apart, component `slot` of each.
fn put(i: u32, step: u32, slot: u32, v: vec4<f32>) {
    tile[i][slot] = v.x;
    tile[i + step][slot] = v.y;
    tile[i + 2u * step][slot] = v.z;
    tile[i + 3u * step][slot] = v.w;
}
