// First pass of the chunked delta rule, for one value head and one chunk of C = 64 tokens:
//   G_i = g_0 + ... + g_i;  D_ij = e^(G_i - G_j), i >= j;  A_ij = beta_i (k_i.k_j) D_ij, i > j
//   U = (I + A)^-1 (beta v);  W = (I + A)^-1 (beta e^G k);  P_ij = (q_i.k_j) D_ij, i >= j
// spec/architectures.md 1.4.2. One workgroup a head and chunk; all f32. At d = 128: 100 KiB read,
// 112 KiB written, 4.2 million operations.
//
// (I + A) X = B is solved for U and W directly, an invocation a column, by forward substitution in
// blocks of 16 rows. A's lower half is kept column by column in quads of rows. Tokens past the end
// have beta = g = k = q = v = 0 and so change nothing.

#import shared/grid
#import shared/delta_heads
#import shared/delta_parts
#import shared/delta_decays
#import shared/delta_solve

const WG: u32 = 256u;
const SLICE: u32 = 4u;                // quads of q and k at a time
const STRIDE: u32 = SLICE + 1u;       // odd, so that neighbouring rows lie in different banks

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [n][2 K d + V d]
@group(0) @binding(1) var<storage, read> gates: array<f32>;                // [n][alpha V, beta V]
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;              // [V]
@group(0) @binding(3) var<storage, read> ssm_a: array<f32>;                // [V]
@group(0) @binding(4) var<storage, read_write> parts: array<vec4<f32>>;    // [V][chunk][column][C]
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;         // [V][chunk][C + 1]
@group(0) @binding(8) var<uniform> p: Params;

// Slices of k and q (64 rows of STRIDE quads each), then A; both take 640 quads.
var<workgroup> tile: array<vec4<f32>, 640>;

// Rows 4 rows .. 4 rows + 3 of four quads of k (start 0) or q (start C * STRIDE).
fn rows_of(start: u32, rows: u32, quad: u32) -> mat4x4<f32> {
    let at = start + rows * 4u * STRIDE + quad;
    return mat4x4(tile[at], tile[at + STRIDE], tile[at + 2u * STRIDE], tile[at + 3u * STRIDE]);
}

// Rows 4 rows .. 4 rows + 3 of column x of [beta v | beta e^G k]. Past the end the factors are 0.
fn right_side(rows: u32, x: u32, head: u32, first: u32) -> vec4<f32> {
    let is_k = x >= head_dim();
    let start = select(v_start(0u, head), k_start(0u, head) - p.heads.quads, is_k) + x / 4u;
    let factor = select(2u, 3u, is_k);
    var values: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let token = min(first + rows * 4u + i, p.n - 1u);
        values[i] = gate[rows * 4u + i][factor] * u[start + token * token_quads()][x % 4u];
    }
    return values;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let head = workgroup / p.chunks;
    if head >= p.heads.value { return; }
    let first = p.first + workgroup % p.chunks * CHUNK;
    let part = workgroup * part_size();
    prepare(local, head, first);
    if local < ROWS {
        let left = decays_left(local);
        for (var i = 0u; i < 4u; i++) {
            scales[workgroup * SCALES + 4u * local + i] = left[i] * norm[4u * local + i].y;
        }
    }
    if local < CHUNK {
        if local == CHUNK - 1u { scales[workgroup * SCALES + CHUNK] = gate[local].w; }
        // From here on beta e^G / |k|.
        gate[local].w *= gate[local].z * norm[local].y;
    }

    // Rows 4 rows .. + 3 and columns `lane`, lane + 16, ... of k k^T and q k^T.
    let rows = local / 16u;
    let lane = local % 16u;
    var kk: array<vec4<f32>, 4>;
    var qk: array<vec4<f32>, 4>;
    for (var slice = 0u; slice < p.heads.quads; slice += SLICE) {
        let i = local / SLICE;
        let quad = local % SLICE;
        var k = vec4<f32>();
        var q = vec4<f32>();
        if first + i < p.n {
            k = u[k_start(first + i, head) + slice + quad] * norm[i].y;
            q = u[q_start(first + i, head) + slice + quad] * norm[i].x;
        }
        workgroupBarrier();
        tile[i * STRIDE + quad] = k;
        tile[(CHUNK + i) * STRIDE + quad] = q;
        workgroupBarrier();
        for (var s = 0u; s < SLICE; s++) {
            let k_rows = rows_of(0u, rows, s);
            let q_rows = rows_of(CHUNK * STRIDE, rows, s);
            for (var block = 0u; block < 4u; block++) {
                if block * 4u > rows { continue; }
                let column = tile[(block * 16u + lane) * STRIDE + s];
                kk[block] += column * k_rows;
                qk[block] += column * q_rows;
            }
        }
        // A column of q: `lane` counts its quads of rows, `rows` the slice's columns.
        let at = (CHUNK + lane * 4u) * STRIDE + rows / 4u;
        let c = rows % 4u;
        let values = vec4(
            tile[at][c], tile[at + STRIDE][c], tile[at + 2u * STRIDE][c], tile[at + 3u * STRIDE][c]
        );
        let decay = exp(log_decays(lane, vec2<f32>()));
        parts[part + (2u * head_dim() + slice * 4u + rows) * ROWS + lane] = values * decay;
    }
    workgroupBarrier();
    for (var block = 0u; block < 4u; block++) {
        if block * 4u > rows { continue; }
        let j = block * 16u + lane;
        let i = rows * 4u;
        let decay = decays_since(j, rows);
        let row = i + vec4<u32>(0u, 1u, 2u, 3u);
        let rate = vec4(gate[i].z, gate[i + 1u].z, gate[i + 2u].z, gate[i + 3u].z);
        tile[entry(j, rows)] = select(vec4<f32>(), rate * kk[block] * decay, row > vec4(j));
        parts[part + (3u * head_dim() + j) * ROWS + rows] =
            select(vec4<f32>(), qk[block] * decay, row >= vec4(j));
    }
    workgroupBarrier();
    for (var x = local; x < 2u * head_dim(); x += WG) {
        let column = part + x * ROWS;
        for (var r = 0u; r < ROWS; r += 4u) {
            var x0 = right_side(r, x, head, first);
            var x1 = right_side(r + 1u, x, head, first);
            var x2 = right_side(r + 2u, x, head, first);
            var x3 = right_side(r + 3u, x, head, first);
            for (var quad = 0u; quad < r; quad++) {
                let known = parts[column + quad];
                x0 = eliminate(x0, known, quad, r);
                x1 = eliminate(x1, known, quad, r + 1u);
                x2 = eliminate(x2, known, quad, r + 2u);
                x3 = eliminate(x3, known, quad, r + 3u);
            }
            // The four move up as the first is solved; what comes after the fourth is not used.
            for (var quad = r; quad < r + 4u; quad++) {
                x0 = solve(x0, quad);
                parts[column + quad] = x0;
                let known = x0;
                x0 = eliminate(x1, known, quad, min(quad + 1u, ROWS - 1u));
                x1 = eliminate(x2, known, quad, min(quad + 2u, ROWS - 1u));
                x2 = eliminate(x3, known, quad, min(quad + 3u, ROWS - 1u));
            }
        }
    }
}
