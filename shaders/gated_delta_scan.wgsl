// Second pass of the chunked delta rule, chunk after chunk, for some columns of one head's state:
//   N = U - W S;  o = (e^G q) S + P N;  S = e^G_last S + sum_j e^(G_last - G_j) k_j N_j^T
// spec/architectures.md 1.4.2. A workgroup keeps COLUMNS quads of columns of S in its memory; an
// invocation computes 4 rows x 4 columns of N and o. At d = 128 and 16 columns: 84 KiB read and
// 0.9 million operations a chunk.
//
// Tokens past the end have rows of zeros in all four matrices; their k and o are not touched.

#import shared/grid
#import shared/delta_heads
#import shared/delta_parts

const COLUMNS: u32 = $COLUMNS;        // quads of columns a workgroup
const WG: u32 = ROWS * COLUMNS;
const BLOCKS: u32 = QUADS * COLUMNS;  // 4 x 4 blocks of the workgroup's part of S

struct Params {
    first: u32,          // first token
    n: u32,              // one past the last token
    chunks: u32,
    key_heads: u32,
    value_heads: u32,
}

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [n][2 K d + V d]
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;          // [V][chunk][column][C]
@group(0) @binding(2) var<storage, read> scales: array<f32>;               // [V][chunk][C + 1]
@group(0) @binding(3) var<storage, read_write> state: array<vec4<f32>>;    // [V][d_k][d_v]
@group(0) @binding(4) var<storage, read_write> o: array<vec4<f32>>;        // [n][V d_v]
@group(1) @binding(0) var<uniform> p: Params;

var<workgroup> s: array<vec4<f32>, D * COLUMNS>;       // [d_k][COLUMNS]
var<workgroup> news: array<vec4<f32>, C * COLUMNS>;    // N, [token][COLUMNS]

fn outer(column: vec4<f32>, row: vec4<f32>) -> mat4x4<f32> {
    return mat4x4(column * row.x, column * row.y, column * row.z, column * row.w);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let head = workgroup / (QUADS / COLUMNS);
    if head >= p.value_heads { return; }
    let first_column = workgroup % (QUADS / COLUMNS) * COLUMNS;
    for (var i = local; i < D * COLUMNS; i += WG) {
        s[i] = state[(head * D + i / COLUMNS) * QUADS + first_column + i % COLUMNS];
    }
    let rows = local % ROWS;
    let lane = local / ROWS;
    for (var chunk = 0u; chunk < p.chunks; chunk++) {
        let first = p.first + chunk * C;
        let part = (head * p.chunks + chunk) * PART + rows;
        let scale = (head * p.chunks + chunk) * SCALES;
        workgroupBarrier();
        // Matrices by columns: each is 4 rows of one column.
        let column = part + (U_COLUMN + (first_column + lane) * 4u) * ROWS;
        var n = mat4x4(
            parts[column], parts[column + ROWS], parts[column + 2u * ROWS], parts[column + 3u * ROWS]
        );
        var out = mat4x4<f32>();
        for (var i = 0u; i < D; i++) {
            let row = s[i * COLUMNS + lane];
            n -= outer(parts[part + (W_COLUMN + i) * ROWS], row);
            out += outer(parts[part + (Q_COLUMN + i) * ROWS], row);
        }
        let by_rows = transpose(n);
        let place = rows * 4u * COLUMNS + lane;
        news[place] = by_rows[0];
        news[place + COLUMNS] = by_rows[1];
        news[place + 2u * COLUMNS] = by_rows[2];
        news[place + 3u * COLUMNS] = by_rows[3];
        workgroupBarrier();
        for (var j = 0u; j < rows * 4u + 4u; j++) {
            out += outer(parts[part + (P_COLUMN + j) * ROWS], news[j * COLUMNS + lane]);
        }
        var results = transpose(out);
        for (var i = 0u; i < 4u; i++) {
            let t = first + rows * 4u + i;
            if t < p.n {
                o[(t * p.value_heads + head) * QUADS + first_column + lane] = results[i];
            }
        }
        let tokens = min(C, p.n - first);
        let decay = scales[scale + C];
        for (var block = local; block < BLOCKS; block += WG) {
            let i = block % QUADS;
            let c = block / QUADS;
            // Of the transposed block of S: columns are rows of S.
            let at = i * 4u * COLUMNS + c;
            var sum = decay
                * mat4x4(s[at], s[at + COLUMNS], s[at + 2u * COLUMNS], s[at + 3u * COLUMNS]);
            for (var j = 0u; j < tokens; j++) {
                let k = u[k_start(first + j, head) + i] * scales[scale + j];
                sum += outer(news[j * COLUMNS + c], k);
            }
            s[at] = sum[0];
            s[at + COLUMNS] = sum[1];
            s[at + 2u * COLUMNS] = sum[2];
            s[at + 3u * COLUMNS] = sum[3];
        }
    }
    workgroupBarrier();
    for (var i = local; i < D * COLUMNS; i += WG) {
        state[(head * D + i / COLUMNS) * QUADS + first_column + i % COLUMNS] = s[i];
    }
}
