// `gated_delta_scan.wgsl` by cooperative matrices, the multipliers of tiles that GPUs have: f16
// operands, f32 sums. For COLUMNS columns of one head's state, chunk after chunk, T = (I + A)^-1:
//   N = T diag(beta) (V - (e^G k) S);  o = (e^G q) S + P N
//   S = e^G_last S + sum_j e^(G_last - G_j) k_j N_j^T
// spec/architectures.md 1.4.2. S stays in registers in f32; what is multiplied is a copy of it, then
// V - (e^G k) S and N, each divided by a power of two for the chunk so that f16 holds them. Four
// subgroups multiply, any more only load. At d = 128: 70 KiB read and 1.8 million operations a chunk.

#import shared/matrices
#import shared/grid
#import shared/delta_heads
#import shared/delta_halves

const COLUMNS: u32 = 32u;
const NC: u32 = COLUMNS / EDGE;
const SUMS: u32 = MINE * NC;
// Quads of rows that an invocation has of C rows, and of the state.
const QUADS: u32 = CHUNK * COLUMNS / 4u / WG;
const HALVES: u32 = D / CHUNK;

@group(0) @binding(0) var<storage, read> u: array<f32>;                    // [n][2 K D + V D]
@group(0) @binding(1) var<storage, read> parts: array<vec4<f16>>;          // [V][chunk][PART]
@group(0) @binding(2) var<storage, read> scales: array<f32>;               // [V][chunk]
@group(0) @binding(3) var<storage, read_write> state: array<f32>;          // [V][D][D]
@group(0) @binding(4) var<storage, read_write> o: array<vec4<f32>>;        // [n][V D]
@group(0) @binding(8) var<uniform> p: Params;

// What parts are multiplied with, [row][COLUMNS]: blocks in the order of rows, each column by column.
var<workgroup> tile: array<vec4<f16>, D * COLUMNS / 4u>;
// Products of C rows: blocks in the same order, each row by row.
var<workgroup> window: array<f32, CHUNK * COLUMNS>;

// Quad `at` of `tile` has four rows of a column.
struct Quad {
    row: u32,
    column: u32,
}

// Neighbours have neighbouring columns.
fn quad_of(at: u32) -> Quad {
    let block = at / BLOCK;
    let row = block / NC * EDGE + at % BLOCK / EDGE * 4u;
    return Quad(row, block % NC * EDGE + at % EDGE);
}

fn tile_place(at: u32) -> u32 {
    return at / BLOCK * BLOCK + at % EDGE * ACROSS + at % BLOCK / EDGE;
}

fn products(at: u32) -> vec4<f32> {
    let i = at / BLOCK * (4u * BLOCK) + at % BLOCK / EDGE * (4u * EDGE) + at % EDGE;
    return vec4(window[i], window[i + EDGE], window[i + 2u * EDGE], window[i + 3u * EDGE]);
}

fn store(sums: ptr<function, array<Sums, SUMS>>, subgroup: u32) {
    for (var i = 0u; i < SUMS; i++) {
        let to = (subgroup * SUMS + i) * (4u * BLOCK);
        coopStoreT((*sums)[i], &window[to], EDGE);
    }
}

// Adds to row r of blocks: a matrix's row, `depth` blocks from `first` on, times rows of `tile`.
fn multiply(sums: ptr<function, array<Sums, SUMS>>, first: u32, r: u32, depth: u32) {
    for (var k = 0u; k < NARROW; k++) {
        if k < depth {
            let a = coopLoadT<Left>(&parts[first + k * BLOCK], ACROSS);
            for (var c = 0u; c < NC; c++) {
                let b = coopLoad<Right>(&tile[(k * NC + c) * BLOCK], ACROSS);
                (*sums)[r * NC + c] = coopMultiplyAdd(a, b, (*sums)[r * NC + c]);
            }
        }
    }
}

// Quad `at` of V of the chunk from token `first` on; past the end whatever is there.
fn values(at: u32, head: u32, first: u32, first_column: u32) -> vec4<f32> {
    let quad = quad_of(at);
    var v: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let token = min(first + quad.row + i, p.n - 1u);
        v[i] = u[4u * v_start(token, head) + first_column + quad.column];
    }
    return v;
}

// 1 / x of a power of two.
fn inverse(x: f32) -> f32 {
    return bitcast<f32>((254u << 23u) - bitcast<u32>(x));
}

fn largest(x: vec4<f32>) -> f32 {
    let y = abs(x);
    return max(max(y.x, y.y), max(y.z, y.w));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let workgroup = flat_workgroup(id, groups);
    let head = workgroup / (D / COLUMNS);
    if head >= p.heads.value { return; }
    let first_column = workgroup % (D / COLUMNS) * COLUMNS;
    let row = subgroup * MINE;      // blocks

    var s: array<vec4<f32>, HALVES * QUADS>;
    for (var j = 0u; j < HALVES * QUADS; j++) {
        let quad = quad_of(j * WG + local);
        let at = (head * D + quad.row) * D + first_column + quad.column;
        s[j] = vec4(state[at], state[at + D], state[at + 2u * D], state[at + 3u * D]);
    }
    var v: array<vec4<f32>, QUADS>;
    for (var j = 0u; j < QUADS; j++) {
        v[j] = values(j * WG + local, head, p.first, first_column);
    }
    for (var chunk = 0u; chunk < p.chunks; chunk++) {
        let first = p.first + chunk * CHUNK;
        let part = (head * p.chunks + chunk) * PART;
        var most = 0.0;
        for (var j = 0u; j < QUADS; j++) { most = max(most, largest(v[j])); }
        for (var j = 0u; j < HALVES * QUADS; j++) { most = max(most, largest(s[j])); }
        most = subgroupMax(most);
        workgroupBarrier();
        if lane == 0u { window[subgroup] = most; }
        workgroupBarrier();
        for (var i = 0u; i < subgroups; i++) { most = max(most, window[i]); }
        // Nothing is larger than 32 units then; V - (e^G k) S is at most 1 + sqrt(D) times that, and N
        // C times as much.
        let unit = bitcast<f32>(u32(clamp(i32(bitcast<u32>(most) >> 23u) - 4, 1, 250)) << 23u);
        for (var j = 0u; j < HALVES * QUADS; j++) {
            tile[tile_place(j * WG + local)] = vec4<f16>(s[j] * inverse(unit));
        }
        workgroupBarrier();
        var known: array<Sums, SUMS>;
        var out: array<Sums, SUMS>;
        if subgroup < PARTS {
            for (var k = 0u; k < WIDE; k++) {
                for (var r = 0u; r < MINE; r++) {
                    let source = part + ((row + r) * WIDE + k) * BLOCK;
                    let a = coopLoadT<Left>(&parts[source + KEYS], ACROSS);
                    let b = coopLoadT<Left>(&parts[source + QUERIES], ACROSS);
                    for (var c = 0u; c < NC; c++) {
                        let old = coopLoad<Right>(&tile[(k * NC + c) * BLOCK], ACROSS);
                        known[r * NC + c] = coopMultiplyAdd(a, old, known[r * NC + c]);
                        out[r * NC + c] = coopMultiplyAdd(b, old, out[r * NC + c]);
                    }
                }
            }
            store(&known, subgroup);
        }
        workgroupBarrier();
        for (var j = 0u; j < QUADS; j++) {
            let at = j * WG + local;
            tile[tile_place(at)] = vec4<f16>(v[j] * inverse(unit) - products(at));
            // Of the next chunk, long before they are needed.
            v[j] = values(at, head, first + CHUNK, first_column);
        }
        workgroupBarrier();
        if subgroup < PARTS {
            var news: array<Sums, SUMS>;
            for (var r = 0u; r < MINE; r++) {
                multiply(&news, part + SOLVED + (row + r) * NARROW * BLOCK, r, row + r + 1u);
            }
            store(&news, subgroup);
        }
        workgroupBarrier();
        for (var j = 0u; j < QUADS; j++) {
            let at = j * WG + local;
            tile[tile_place(at)] = vec4<f16>(products(at));
        }
        workgroupBarrier();
        if subgroup < PARTS {
            for (var r = 0u; r < MINE; r++) {
                multiply(&out, part + SCORES + (row + r) * NARROW * BLOCK, r, row + r + 1u);
            }
            store(&out, subgroup);
        }
        workgroupBarrier();
        for (var at = local; at < CHUNK * COLUMNS / 4u; at += WG) {
            let block = at / BLOCK;
            let token = first + block / NC * EDGE + at % BLOCK / ACROSS;
            let quad = first_column / 4u + block % NC * ACROSS + at % ACROSS;
            let i = 4u * at;
            let values = vec4(window[i], window[i + 1u], window[i + 2u], window[i + 3u]);
            if token < p.n { o[(token * p.heads.value + head) * (D / 4u) + quad] = unit * values; }
        }
        let decay = scales[head * p.chunks + chunk];
        for (var half = 0u; half < HALVES; half++) {
            workgroupBarrier();
            if subgroup < PARTS {
                var sums: array<Sums, SUMS>;
                for (var r = 0u; r < MINE; r++) {
                    let source = (half * NARROW + row + r) * NARROW * BLOCK;
                    multiply(&sums, part + UPDATES + source, r, NARROW);
                }
                store(&sums, subgroup);
            }
            workgroupBarrier();
            for (var j = 0u; j < QUADS; j++) {
                let i = half * QUADS + j;
                s[i] = decay * s[i] + unit * products(j * WG + local);
            }
        }
    }
    for (var j = 0u; j < HALVES * QUADS; j++) {
        let quad = quad_of(j * WG + local);
        let at = (head * D + quad.row) * D + first_column + quad.column;
        state[at] = s[j].x;
        state[at + D] = s[j].y;
        state[at + 2u * D] = s[j].z;
        state[at + 3u * D] = s[j].w;
    }
}
