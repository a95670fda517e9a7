// `gated_delta_chunk.wgsl` by cooperative matrices, the multipliers of tiles that GPUs have: f16
// operands, f32 sums. spec/architectures.md 1.4.2. It leaves T itself, with which the second pass
// multiplies, so only C columns are solved for; all that is solved is f32. Four subgroups multiply,
// any more only load. At d = 128: 100 KiB read, 64 KiB written, 1 million operations by matrices and
// 0.2 million others.

#import shared/matrices
#import shared/grid
#import shared/delta_heads
#import shared/delta_halves
#import shared/delta_decays
#import shared/delta_solve

const SLICE: u32 = 4u;                          // quads of q and k at a time
const LOADS: u32 = (SLICE * CHUNK + WG - 1u) / WG;  // of k, and as many of q, by an invocation
const SOLVES: u32 = (CHUNK + WG - 1u) / WG;         // columns that an invocation solves for
const STEPS: u32 = 4u * SLICE / EDGE;           // blocks of a slice along k

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [n][2 K D + V D]
@group(0) @binding(1) var<storage, read> gates: array<f32>;                // [n][alpha V, beta V]
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;              // [V]
@group(0) @binding(3) var<storage, read> ssm_a: array<f32>;                // [V]
@group(0) @binding(4) var<storage, read_write> parts: array<vec4<f16>>;    // [V][chunk][PART]
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;         // [V][chunk] e^G_last
@group(0) @binding(8) var<uniform> p: Params;

// Squares and gates; then decays to the chunk's end; then products, A and T.
var<workgroup> tile: array<vec4<f32>, 640>;
// Slices of k and, from SLICE * C on, of q.
var<workgroup> slices: array<vec4<f16>, 2u * SLICE * CHUNK>;

// Writes rows' quads of a lower triangle that is in `tile`.
fn put(base: u32, row: u32, quad: u32, values: vec4<f32>) {
    parts[base + place(row, quad, NARROW)] = vec4<f16>(values);
}

// Quad `quad` of row `row` of what is in `tile`.
fn row_of(row: u32, quad: u32) -> vec4<f32> {
    let at = entry(4u * quad, row / 4u);
    let next = 16u - 4u * (quad / 4u);
    let i = row % 4u;
    return vec4(tile[at][i], tile[at + next][i], tile[at + 2u * next][i], tile[at + 3u * next][i]);
}

// Rows 4 rows .. 4 rows + 3 of column j of the unit matrix.
fn unit(j: u32, rows: u32) -> vec4<f32> {
    return select(vec4(0.0), vec4(1.0), 4u * rows + vec4(0u, 1u, 2u, 3u) == vec4(j));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let head = workgroup / p.chunks;
    if head >= p.heads.value { return; }
    let first = p.first + workgroup % p.chunks * CHUNK;
    let part = workgroup * PART;
    prepare(local, head, first);
    if local == 0u { scales[workgroup] = gate[CHUNK - 1u].w; }
    for (var rows = local; rows < ROWS; rows += WG) { tile[rows] = decays_left(rows); }

    // A subgroup's rows of k k^T and q k^T, up to the diagonal.
    var kk: array<Sums, MINE * NARROW>;
    var qk: array<Sums, MINE * NARROW>;
    for (var slice = 0u; slice < D / 4u; slice += SLICE) {
        var k: array<vec4<f32>, LOADS>;
        var q: array<vec4<f32>, LOADS>;
        for (var l = 0u; l < LOADS; l++) {
            let i = min((l * WG + local) / SLICE, CHUNK - 1u);
            let quad = slice + local % SLICE;
            if first + i < p.n {
                k[l] = u[k_start(first + i, head) + quad] * norm[i].y;
                q[l] = u[q_start(first + i, head) + quad] * norm[i].x;
            }
        }
        workgroupBarrier();
        for (var l = 0u; l < LOADS; l++) {
            let i = (l * WG + local) / SLICE;
            if i >= CHUNK { continue; }
            let quad = local % SLICE;
            let to = place(i, quad, STEPS);
            slices[to] = vec4<f16>(k[l]);
            slices[SLICE * CHUNK + to] = vec4<f16>(q[l]);
            let out = part + place(i, slice + quad, WIDE);
            parts[out + KEYS] = vec4<f16>(gate[i].w * k[l]);
            parts[out + QUERIES] = vec4<f16>(gate[i].w * q[l]);
        }
        workgroupBarrier();
        // Quads of tokens of a column of k.
        for (var at = local; at < 4u * SLICE * ROWS; at += WG) {
            let rows = at % ROWS;
            let c = at / ROWS;
            var values: vec4<f32>;
            for (var i = 0u; i < 4u; i++) {
                values[i] = f32(slices[place(4u * rows + i, c / 4u, STEPS)][c % 4u]);
            }
            let out = part + UPDATES + place(4u * slice + c, rows, NARROW);
            parts[out] = vec4<f16>(tile[rows] * values);
        }
        if subgroup < PARTS {
            for (var step = 0u; step < STEPS; step++) {
                for (var r = 0u; r < MINE; r++) {
                    let row = subgroup * MINE + r;
                    let source = (row * STEPS + step) * BLOCK;
                    let a = coopLoadT<Left>(&slices[source], ACROSS);
                    let b = coopLoadT<Left>(&slices[SLICE * CHUNK + source], ACROSS);
                    for (var c = 0u; c < NARROW; c++) {
                        if c <= row {
                            let column = coopLoad<Right>(&slices[(c * STEPS + step) * BLOCK], ACROSS);
                            kk[r * NARROW + c] = coopMultiplyAdd(a, column, kk[r * NARROW + c]);
                            qk[r * NARROW + c] = coopMultiplyAdd(b, column, qk[r * NARROW + c]);
                        }
                    }
                }
            }
        }
    }

    workgroupBarrier();
    for (var i = 0u; i < MINE * NARROW; i++) {
        let row = subgroup * MINE + i / NARROW;
        let c = i % NARROW;
        if subgroup < PARTS && c <= row {
            let to = entry(c * EDGE, row * ACROSS);
            let next = 16u - 4u * (c * EDGE / 16u);
            coopStore(qk[i], &tile[to], next);
        }
    }
    workgroupBarrier();
    for (var at = local; at < CHUNK * ROWS; at += WG) {
        let row = at % CHUNK;
        let quad = at / CHUNK;
        if quad / ACROSS > row / EDGE { continue; }
        let j = 4u * quad;
        let g = log_decays(quad, gate[row].xy);
        let score = row_of(row, quad) * exp(min(-g, vec4(0.0)));
        let live = vec4(j) + vec4(0u, 1u, 2u, 3u) <= vec4(row);
        put(part + SCORES, row, quad, select(vec4(0.0), score, live));
    }
    workgroupBarrier();
    for (var i = 0u; i < MINE * NARROW; i++) {
        let row = subgroup * MINE + i / NARROW;
        let c = i % NARROW;
        if subgroup < PARTS && c <= row {
            let to = entry(c * EDGE, row * ACROSS);
            let next = 16u - 4u * (c * EDGE / 16u);
            coopStore(kk[i], &tile[to], next);
        }
    }
    workgroupBarrier();
    for (var at = local; at < CHUNK * ROWS; at += WG) {
        let j = at / ROWS;
        let rows = at % ROWS;
        if rows < j / 16u * 4u { continue; }
        let i = 4u * rows;
        let rate = vec4(gate[i].z, gate[i + 1u].z, gate[i + 2u].z, gate[i + 3u].z);
        let a = rate * tile[entry(j, rows)] * decays_since(j, rows);
        let live = vec4(i) + vec4(0u, 1u, 2u, 3u) > vec4(j);
        tile[entry(j, rows)] = select(vec4(0.0), a, live);
    }
    workgroupBarrier();

    // T takes the place of A, four quads of rows at a time.
    for (var r = 0u; r < ROWS; r += 4u) {
        var x: array<vec4<f32>, 4u * SOLVES>;
        for (var s = 0u; s < SOLVES; s++) {
            let j = s * WG + local;
            if j >= min(CHUNK, 4u * r + 16u) { continue; }
            var x0 = unit(j, r);
            var x1 = unit(j, r + 1u);
            var x2 = unit(j, r + 2u);
            var x3 = unit(j, r + 3u);
            for (var quad = j / 16u * 4u; quad < r; quad++) {
                let known = tile[entry(j, quad)];
                x0 = eliminate(x0, known, quad, r);
                x1 = eliminate(x1, known, quad, r + 1u);
                x2 = eliminate(x2, known, quad, r + 2u);
                x3 = eliminate(x3, known, quad, r + 3u);
            }
            x0 = solve(x0, r);
            x1 = solve(eliminate(x1, x0, r, r + 1u), r + 1u);
            x2 = eliminate(x2, x0, r, r + 2u);
            x2 = solve(eliminate(x2, x1, r + 1u, r + 2u), r + 2u);
            x3 = eliminate(x3, x0, r, r + 3u);
            x3 = eliminate(x3, x1, r + 1u, r + 3u);
            x3 = solve(eliminate(x3, x2, r + 2u, r + 3u), r + 3u);
            x[4u * s] = x0;
            x[4u * s + 1u] = x1;
            x[4u * s + 2u] = x2;
            x[4u * s + 3u] = x3;
        }
        workgroupBarrier();
        for (var s = 0u; s < SOLVES; s++) {
            let j = s * WG + local;
            if j >= min(CHUNK, 4u * r + 16u) { continue; }
            for (var i = 0u; i < 4u; i++) { tile[entry(j, r + i)] = x[4u * s + i]; }
        }
        workgroupBarrier();
    }
    for (var at = local; at < CHUNK * ROWS; at += WG) {
        let row = at % CHUNK;
        let quad = at / CHUNK;
        if quad / ACROSS > row / EDGE { continue; }
        let j = 4u * quad;
        let rate = vec4(gate[j].z, gate[j + 1u].z, gate[j + 2u].z, gate[j + 3u].z);
        put(part + SOLVED, row, quad, rate * row_of(row, quad));
    }
}
