// `tile_product.wgsl` by cooperative matrices, the multipliers of tiles that GPUs have: f16 operands,
// f32 sums. A workgroup makes a tile of 128 rows of W times $TM rows of x, each of four subgroups 32
// rows of W; the tile's matrices are of $EDGE x $EDGE. x comes in f16 with an exponent a row
// (`f16_rows.wgsl`), which the products are multiplied with in the end.
//
// Operations are per subgroup, and subgroups may be smaller than $LANES, the largest the device has:
// four are used, any more only load.

#import shared/matrices
#import shared/grid
#import shared/product
#import shared/product_tile

const TN: u32 = 128u;
const TM: u32 = $TM;        // a multiple of EDGE, at most 64
const PARTS: u32 = 4u;      // of the rows of W, a subgroup each
const WG: u32 = PARTS * $LANES;
const RUNS: u32 = BLOCK / 16u;

// Runs and vec4s that an invocation loads in a step of 32.
const W_LOADS: u32 = 2u * TN / WG;
const X_LOADS: u32 = (8u * TM + WG - 1u) / WG;

// Matrices of a subgroup along W and along x.
const NW: u32 = TN / PARTS / EDGE;
const NX: u32 = TM / EDGE;

// Rows of W, then of x: 32 halves of a step in 8 vec4s, and 2 that spread rows over the banks.
const STRIDE: u32 = 10u;
const X: u32 = TN * STRIDE;
var<workgroup> tile: array<vec4<f16>, X + TM * STRIDE>;
// The products of one matrix, [row of x][row of W].
var<workgroup> products: array<f32, EDGE * EDGE>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = tile_of(flat_workgroup(id, groups));
    if at.low >= at.high { return; }

    // What this invocation loads in each step: runs of rows of W, vec4s of rows of x.
    var blocks: array<u32, W_LOADS>;
    for (var j = 0u; j < W_LOADS; j++) {
        let row = clamp(at.start + (j * WG + local) % TN, at.low, at.high - 1u);
        blocks[j] = (row - p.part.first_row) * p.part.row_blocks;
    }
    let quads = (p.n_in + 31u) / 32u * 8u;
    var rows: array<u32, X_LOADS>;
    for (var j = 0u; j < X_LOADS; j++) {
        rows[j] = x_row(at.first + min((j * WG + local) / 8u, at.count - 1u)) * (quads + 2u);
    }
    var sums: array<Sums, NW * NX>;
    for (var first_run = 0u; first_run < p.part.row_blocks * RUNS; first_run += 2u) {
        let block = first_run / RUNS;
        workgroupBarrier();
        for (var j = 0u; j < W_LOADS; j++) {
            let i = j * WG + local;
            let run = load_run(blocks[j] + block, first_run % RUNS + i / TN);
            let place = i % TN * STRIDE + i / TN * 4u;
            tile[place] = vec4<f16>(run[0]);
            tile[place + 1u] = vec4<f16>(run[1]);
            tile[place + 2u] = vec4<f16>(run[2]);
            tile[place + 3u] = vec4<f16>(run[3]);
        }
        for (var j = 0u; j < X_LOADS; j++) {
            let i = j * WG + local;
            let k = block * BLOCK + run_start(first_run % RUNS + ((i >> 2u) & 1u));
            let quad = x[rows[j] + k / 4u + (i & 3u)];
            if i < 8u * TM { tile[X + i / 8u * STRIDE + i % 8u] = quad; }
        }
        workgroupBarrier();
        if subgroup < PARTS {
            for (var k = 0u; k < 32u; k += EDGE) {
                var b: array<Right, NW>;
                for (var r = 0u; r < NW; r++) {
                    let place = (subgroup * NW + r) * EDGE * STRIDE + k / 4u;
                    b[r] = coopLoad<Right>(&tile[place], STRIDE);
                }
                for (var q = 0u; q < NX; q++) {
                    // Rows of x that there are not cost nothing.
                    if q * EDGE < at.count {
                        let a = coopLoadT<Left>(&tile[X + q * EDGE * STRIDE + k / 4u], STRIDE);
                        for (var r = 0u; r < NW; r++) {
                            sums[q * NW + r] = coopMultiplyAdd(a, b[r], sums[q * NW + r]);
                        }
                    }
                }
            }
        }
    }

    // By way of workgroup memory, a matrix at a time: `tile` leaves room for no more.
    for (var q = 0u; q < NX; q++) {
        if q * EDGE >= at.count { break; }
        for (var r = 0u; r < NW; r++) {
            for (var part = 0u; part < PARTS; part++) {
                workgroupBarrier();
                if subgroup == part { coopStoreT(sums[q * NW + r], &products[0], EDGE); }
                workgroupBarrier();
                for (var i = local; i < EDGE * EDGE; i += WG) {
                    let row = at.start + (part * NW + r) * EDGE + i % EDGE;
                    let t = q * EDGE + i / EDGE;
                    if row < at.low || row >= at.high || t >= at.count { continue; }
                    let o = y_row(at.first + t) * p.n_out + row - at.top;
                    let exponent = i32(x[x_row(at.first + t) * (quads + 2u) + quads].x);
                    let scale = bitcast<f32>(u32(127 + exponent) << 23u);
                    if p.epilogue != GATED {
                        finish(o, scale * products[i]);
                    } else if o % 2u == 0u {
                        y[o / 2u] = silu(scale * products[i]) * (scale * products[i + 1u]);
                    }
                }
            }
        }
    }
}
