// The share of one of LANES invocations in the dot products of ROWS rows of W, whose first blocks
// are `base`, with N rows of x. A load of x serves all rows of W, a dequantised weight all of x.

const RUNS: u32 = BLOCK / 16u;

fn row_sums(
    lane: u32,
    base: array<u32, ROWS>,
    x_rows: array<u32, N>,
) -> array<f32, ROWS * N> {
    var sums: array<f32, ROWS * N>;
    for (var run = lane; run < p.part.row_blocks * RUNS; run += LANES) {
        let block = run / RUNS;
        var weights: array<mat4x4<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            weights[r] = load_run(base[r] + block, run % RUNS);
        }
        let i = block * BLOCK + run_start(run % RUNS);
        for (var t = 0u; t < N; t++) {
            let x0 = x4(x_rows[t], i);
            let x1 = x4(x_rows[t], i + 4u);
            let x2 = x4(x_rows[t], i + 8u);
            let x3 = x4(x_rows[t], i + 12u);
            for (var r = 0u; r < ROWS; r++) {
                sums[r * N + t] += dot(weights[r][0], x0) + dot(weights[r][1], x1)
                    + dot(weights[r][2], x2) + dot(weights[r][3], x3);
            }
        }
    }
    return sums;
}
