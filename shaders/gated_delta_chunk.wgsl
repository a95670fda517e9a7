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
#import shared/delta_gates
#import shared/delta_heads
#import shared/delta_parts

const WG: u32 = 256u;
const SLICE: u32 = 4u;                // quads of q and k at a time
const STRIDE: u32 = SLICE + 1u;       // odd, so that neighbouring rows lie in different banks

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [n][2 K d + V d]
@group(0) @binding(1) var<storage, read> gates: array<f32>;                // [n][alpha V, beta V]
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;              // [V]
@group(0) @binding(3) var<storage, read> ssm_a: array<f32>;                // [V]
@group(0) @binding(4) var<storage, read_write> parts: array<vec4<f32>>;    // [V][chunk][column][C]
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;         // [V][chunk][C + 1]
@group(1) @binding(0) var<uniform> p: Params;

// Slices of k and q (64 rows of STRIDE quads each), then A; both take 640 quads.
var<workgroup> tile: array<vec4<f32>, 640>;
// Per token: G in two parts, beta, beta e^G / |k|.
var<workgroup> gate: array<vec4<f32>, C>;
// Per token: 1 / (|q| sqrt(d_k)), 1 / |k|.
var<workgroup> norm: array<vec2<f32>, C>;

// Place of rows 4 rows .. 4 rows + 3 of A's column j; rows >= 4 (j / 16).
fn entry(j: u32, rows: u32) -> u32 {
    let block = j / 16u;
    return 256u * block - 32u * block * (block - 1u) + j % 16u * (16u - 4u * block)
        + rows - 4u * block;
}

// Scales and gates of all tokens.
fn prepare(local: u32, head: u32, first: u32, scale_start: u32) {
    let i = local / 4u;
    let lane = local % 4u;
    var squares = vec2<f32>();
    if first + i < p.n {
        for (var quad = lane; quad < p.heads.quads; quad += 4u) {
            let q = u[q_start(first + i, head) + quad];
            let k = u[k_start(first + i, head) + quad];
            squares += vec2(dot(q, q), dot(k, k));
        }
    }
    var g = 0.0;
    var rate = 0.0;
    if lane == 0u && first + i < p.n {
        let at = 2u * (first + i) * p.heads.value + head;
        g = log_decay(gates[at], dt_bias[head], ssm_a[head]);
        rate = sigmoid(gates[at + p.heads.value]);
    }
    tile[local] = vec4(squares, g, rate);
    workgroupBarrier();
    if local < C {
        let sums = tile[4u * local] + tile[4u * local + 1u] + tile[4u * local + 2u]
            + tile[4u * local + 3u];
        let inverse = vec2(inverse_norm(sums.x) / sqrt(f32(head_dim())), inverse_norm(sums.y));
        // Differences of G matter where G itself is large, so it is kept in two parts: multiples of
        // 1/1024, whose sums are exact (|G| <= 64 * 104), and the rest.
        var sum = vec2<f32>();
        for (var j = 0u; j <= local; j++) {
            let g = tile[4u * j].z;
            let coarse = round(g * 1024.0) / 1024.0;
            sum += vec2(coarse, g - coarse);
        }
        norm[local] = select(vec2<f32>(), inverse, first + local < p.n);
        gate[local] = vec4(sum, sums.w, sums.w * exp(sum.x + sum.y) * inverse.y);
    }
    workgroupBarrier();
    if local < C {
        let last = gate[C - 1u].xy;
        let rest = last - gate[local].xy;
        scales[scale_start + local] = exp(min(rest.x + rest.y, 0.0)) * norm[local].y;
        if local == 0u { scales[scale_start + C] = exp(last.x + last.y); }
    }
}

// Rows 4 rows .. 4 rows + 3 of four quads of k (start 0) or q (start C * STRIDE).
fn rows_of(start: u32, rows: u32, quad: u32) -> mat4x4<f32> {
    let at = start + rows * 4u * STRIDE + quad;
    return mat4x4(tile[at], tile[at + STRIDE], tile[at + 2u * STRIDE], tile[at + 3u * STRIDE]);
}

// G of four rows less that of another, or of none.
fn log_decays(rows: u32, origin: vec2<f32>) -> vec4<f32> {
    let a = gate[4u * rows].xy - origin;
    let b = gate[4u * rows + 1u].xy - origin;
    let c = gate[4u * rows + 2u].xy - origin;
    let d = gate[4u * rows + 3u].xy - origin;
    return vec4(a.x + a.y, b.x + b.y, c.x + c.y, d.x + d.y);
}

// acc minus A's columns 4 quad .. 4 quad + 3 times x, for four rows.
fn eliminate(acc: vec4<f32>, x: vec4<f32>, quad: u32, rows: u32) -> vec4<f32> {
    let at = entry(4u * quad, rows);
    let next = 16u - 4u * (quad / 4u);
    return acc - (x.x * tile[at] + x.y * tile[at + next] + x.z * tile[at + 2u * next]
        + x.w * tile[at + 3u * next]);
}

// Forward substitution inside four rows: A has zeros on and above the diagonal.
fn solve(rhs: vec4<f32>, rows: u32) -> vec4<f32> {
    let at = entry(4u * rows, rows);
    let next = 16u - 4u * (rows / 4u);
    var x = rhs - rhs.x * tile[at];
    x -= x.y * tile[at + next];
    return x - x.z * tile[at + 2u * next];
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
    let first = p.first + workgroup % p.chunks * C;
    let part = workgroup * part_size();
    prepare(local, head, first, workgroup * SCALES);

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
        tile[(C + i) * STRIDE + quad] = q;
        workgroupBarrier();
        for (var s = 0u; s < SLICE; s++) {
            let k_rows = rows_of(0u, rows, s);
            let q_rows = rows_of(C * STRIDE, rows, s);
            for (var block = 0u; block < 4u; block++) {
                if block * 4u > rows { continue; }
                let column = tile[(block * 16u + lane) * STRIDE + s];
                kk[block] += column * k_rows;
                qk[block] += column * q_rows;
            }
        }
        // A column of q: `lane` counts its quads of rows, `rows` the slice's columns.
        let at = (C + lane * 4u) * STRIDE + rows / 4u;
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
        // Above the diagonal the logarithm is positive: never exponentiated.
        let decay = exp(min(log_decays(rows, gate[j].xy), vec4(0.0)));
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
