// The share of one of LANES invocations in the dot products of ROWS rows of W, whose first blocks
// are `base`, with N rows of x. Both rows use a load of x, all rows of x a dequantised weight; one
// run of a unit after the other, which keeps it all in registers.

const UNITS: u32 = BLOCK / 32u;

fn row_sums(
    lane: u32,
    base: array<u32, ROWS>,
    x_rows: array<u32, N>,
) -> array<f32, ROWS * N> {
    var sums: array<f32, ROWS * N>;
    for (var u = lane; u < p.part.row_blocks * UNITS; u += LANES) {
        let block = u / UNITS;
        let unit = u % UNITS;
        for (var side = 0u; side < 2u; side++) {
            var runs: array<mat4x4<f32>, ROWS>;
            for (var r = 0u; r < ROWS; r++) {
                runs[r] = load_run(base[r] + block, unit, side);
            }
            let i = block * BLOCK + run_start(unit, side);
            for (var t = 0u; t < N; t++) {
                let x0 = x4(x_rows[t], i);
                let x1 = x4(x_rows[t], i + 4u);
                let x2 = x4(x_rows[t], i + 8u);
                let x3 = x4(x_rows[t], i + 12u);
                for (var r = 0u; r < ROWS; r++) {
                    sums[r * N + t] += dot(runs[r][0], x0) + dot(runs[r][1], x1)
                        + dot(runs[r][2], x2) + dot(runs[r][3], x3);
                }
            }
        }
    }
    return sums;
}
