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

@group(0) @binding(0) var<storage, read> u: array<vec4<f32>>;              // [n][2 K d + V d]
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;          // [V][chunk][column][C]
@group(0) @binding(2) var<storage, read> scales: array<f32>;               // [V][chunk][C + 1]
@group(0) @binding(3) var<storage, read_write> state: array<vec4<f32>>;    // [V][d_k][d_v]
@group(0) @binding(4) var<storage, read_write> o: array<vec4<f32>>;        // [n][V d_v]
@group(0) @binding(8) var<uniform> p: Params;

var<workgroup> s: array<vec4<f32>, 512>;            // [d_k][COLUMNS]
var<workgroup> news: array<vec4<f32>, CHUNK * COLUMNS>;    // N, [token][COLUMNS]

// Rows of four matrices' columns: the four from `at` on.
fn columns_of(at: u32) -> mat4x4<f32> {
    return mat4x4(parts[at], parts[at + ROWS], parts[at + 2u * ROWS], parts[at + 3u * ROWS]);
}

// Quads of four rows of S.
fn state_rows(row: u32, lane: u32) -> mat4x4<f32> {
    let at = row * COLUMNS + lane;
    return mat4x4(s[at], s[at + COLUMNS], s[at + 2u * COLUMNS], s[at + 3u * COLUMNS]);
}

// Quads of N of four tokens.
fn new_rows(token: u32, lane: u32) -> mat4x4<f32> {
    let at = token * COLUMNS + lane;
    return mat4x4(news[at], news[at + COLUMNS], news[at + 2u * COLUMNS], news[at + 3u * COLUMNS]);
}

fn k_of(token: u32, head: u32, scale: u32, i: u32) -> vec4<f32> {
    return scales[scale] * u[k_start(min(token, p.n - 1u), head) + i];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let tiles = p.heads.quads / COLUMNS;
    let head = workgroup / tiles;
    if head >= p.heads.value { return; }
    let first_column = workgroup % tiles * COLUMNS;
    let place = head * head_dim() * p.heads.quads + first_column;
    for (var i = local; i < head_dim() * COLUMNS; i += WG) {
        s[i] = state[place + i / COLUMNS * p.heads.quads + i % COLUMNS];
    }
    let rows = local % ROWS;
    let lane = local / ROWS;
    for (var chunk = 0u; chunk < p.chunks; chunk++) {
        let first = p.first + chunk * CHUNK;
        let part = (head * p.chunks + chunk) * part_size() + rows;
        let scale = (head * p.chunks + chunk) * SCALES;
        workgroupBarrier();
        // A block has 4 rows and 4 columns; as a matrix its columns are the block's.
        var n = columns_of(part + (first_column + lane) * 4u * ROWS);
        var out = mat4x4<f32>();
        for (var i = 0u; i < head_dim(); i += 4u) {
            let old = state_rows(i, lane);
            n -= columns_of(part + (head_dim() + i) * ROWS) * transpose(old);
            out += columns_of(part + (2u * head_dim() + i) * ROWS) * transpose(old);
        }
        let by_rows = transpose(n);
        let at = rows * 4u * COLUMNS + lane;
        news[at] = by_rows[0];
        news[at + COLUMNS] = by_rows[1];
        news[at + 2u * COLUMNS] = by_rows[2];
        news[at + 3u * COLUMNS] = by_rows[3];
        workgroupBarrier();
        for (var j = 0u; j <= 4u * rows; j += 4u) {
            out += columns_of(part + (3u * head_dim() + j) * ROWS) * transpose(new_rows(j, lane));
        }
        var results = transpose(out);
        for (var i = 0u; i < 4u; i++) {
            let t = first + rows * 4u + i;
            if t < p.n {
                o[(t * p.heads.value + head) * p.heads.quads + first_column + lane] = results[i];
            }
        }
        let tokens = min(CHUNK, p.n - first);
        let decay = scales[scale + CHUNK];
        for (var block = local; block < p.heads.quads * COLUMNS; block += WG) {
            let i = block % p.heads.quads;
            let c = block / p.heads.quads;
            // As a matrix its columns are the block's rows.
            var sum = decay * state_rows(i * 4u, c);
            for (var j = 0u; j < tokens; j += 4u) {
                let t = first + j;
                let k = mat4x4(
                    k_of(t, head, scale + j, i), k_of(t + 1u, head, scale + j + 1u, i),
                    k_of(t + 2u, head, scale + j + 2u, i), k_of(t + 3u, head, scale + j + 3u, i),
                );
                sum += new_rows(j, c) * transpose(k);
            }
            let to = i * 4u * COLUMNS + c;
            s[to] = sum[0];
            s[to + COLUMNS] = sum[1];
            s[to + 2u * COLUMNS] = sum[2];
            s[to + 3u * COLUMNS] = sum[3];
        }
    }
    workgroupBarrier();
    for (var i = local; i < head_dim() * COLUMNS; i += WG) {
        state[place + i / COLUMNS * p.heads.quads + i % COLUMNS] = s[i];
    }
}
