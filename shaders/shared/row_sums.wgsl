// The share of one of LANES invocations in the dot products of ROWS rows of W, whose first blocks
// are `base`, with N rows of x. A load of x serves all rows of W, a weight all of x.

const RUNS: u32 = BLOCK / 16u;

fn row_sums(
    lane: u32,
    base: array<u32, ROWS>,
    x_rows: array<u32, N>,
) -> array<f32, ROWS * N> {
    var sums: array<f32, ROWS * N>;
#if LANES=1
    for (var run = 0u; run < p.part.row_blocks * RUNS; run += 2u) {
        // Two in one go: compilers load once what they have in common.
        add_run(run, base, x_rows, &sums);
        add_run(run | 1u, base, x_rows, &sums);
    }
#else
    for (var run = lane; run < p.part.row_blocks * RUNS; run += LANES) {
        add_run(run, base, x_rows, &sums);
    }
#endif
    return sums;
}

fn add_run(
    run: u32,
    base: array<u32, ROWS>,
    x_rows: array<u32, N>,
    sums: ptr<function, array<f32, ROWS * N>>,
) {
    let block = run / RUNS;
    let i = block * BLOCK + run_start(run % RUNS);
#if format=f32|f16|bf16
    var weights: array<mat4x4<f32>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        weights[r] = load_run(base[r] + block, run % RUNS);
    }
    for (var t = 0u; t < N; t++) {
        let v = x16(x_rows[t], i);
        for (var r = 0u; r < ROWS; r++) {
            (*sums)[r * N + t] += dot(weights[r][0], v[0]) + dot(weights[r][1], v[1])
                + dot(weights[r][2], v[2]) + dot(weights[r][3], v[3]);
        }
    }
#else
    // The sum of (scale * q + offset) * x is scale * sum(q * x) + offset * sum(x).
    var weights: array<Bytes, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        weights[r] = load_bytes(base[r] + block, run % RUNS);
    }
#if whole
    for (var r = 0u; r < ROWS; r++) {
        if WIDE {
            // Signed, 128 less.
            weights[r].q ^= vec4(0x80808080u);
            weights[r].offset += 128.0 * weights[r].scale;
        }
    }
    for (var t = 0u; t < N; t++) {
        // x is unit * (254 * high + low).
        let at = 5u * (x_rows[t] * (p.n_in >> 5u) + (i >> 5u));
        let half = (i >> 4u) & 1u;
        let high = x[at + half];
        let low = x[at + 2u + half];
        let head = bitcast<vec4<f32>>(x[at + 4u]);
        let sum = select(head.y, head.z, half == 1u);
        for (var r = 0u; r < ROWS; r++) {
            let q = weights[r].q;
            let product = 254 * dots(q, high) + dots(q, low);
            (*sums)[r * N + t] += weights[r].scale * head.x * f32(product) + weights[r].offset * sum;
        }
    }
#else
    for (var t = 0u; t < N; t++) {
        let v = x16(x_rows[t], i);
        let sum = v[0] + v[1] + v[2] + v[3];
        let all = dot(sum, vec4(1.0));
        for (var r = 0u; r < ROWS; r++) {
            let q = weights[r].q;
            let product = dot(vec4<f32>(unpack4xU8(q.x)), v[0])
                + dot(vec4<f32>(unpack4xU8(q.y)), v[1])
                + dot(vec4<f32>(unpack4xU8(q.z)), v[2])
                + dot(vec4<f32>(unpack4xU8(q.w)), v[3]);
            (*sums)[r * N + t] += weights[r].scale * product + weights[r].offset * all;
        }
    }
#endif
#endif
}

#if whole
fn dots(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z)
        + dot4I8Packed(a.w, b.w);
}
#else
// The values of x that belong to a run.
fn x16(row: u32, i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(x4(row, i), x4(row, i + 4u), x4(row, i + 8u), x4(row, i + 12u));
}
#endif
