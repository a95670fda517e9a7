// What both attention kernels share: bindings, which queries and which part of the history a
// workgroup works on, and the running softmax it leaves for later pieces and the merge.
//
// A workgroup has one kv head, $TOKENS consecutive queries, $HEADS query heads of the kv head's
// group, and one of `splits` parts of a piece of the history. Row r is query r / HEADS, head
// r % HEADS.

#import shared/grid
#import kv/$K
#import kv/$V

const D: u32 = $D;              // head_dim, a multiple of 8
const EIGHTS: u32 = D / 8u;
const TOKENS: u32 = $TOKENS;
const HEADS: u32 = $HEADS;
const ROWS: u32 = TOKENS * HEADS;
// In place of minus infinity, which drivers may assume never to occur.
const LOWEST: f32 = -3.0e38;

struct Params {
    groups: u32,          // workgroups in all
    n: u32,               // queries of this dispatch
    first: u32,           // the first of them among the step's
    n_head: u32,
    n_kv: u32,
    heads: u32,           // query heads a kv head
    blocks: u32,          // workgroups for them
    splits: u32,
    least: u32,           // keys a split takes at least, a multiple of 64
    piece_first: u32,     // position of the piece's first token
    piece_tokens: u32,
    base: u32,            // row of that token in the buffers
    carry: u32,           // 1: earlier pieces have left their state
    scale: f32,           // of q . k
    // 1, unknown to the compiler: a factor of loop bounds that must not be unrolled, where that
    // takes software Vulkan many seconds.
    one: u32,
#if sparse
    shift: u32,           // log2 of the tokens a block
    most: u32,            // blocks a query selects
#endif
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;       // [step's n][n_head][D/4]
@group(0) @binding(1) var<storage, read> keys: array<Cell_$K>;      // [token][n_kv][D]
@group(0) @binding(2) var<storage, read> values: array<Cell_$V>;    // [token][n_kv][D]
@group(0) @binding(3) var<storage, read> positions: array<u32>;     // [step's n]
// Largest score and sum of exp(score - largest) of a split.
@group(0) @binding(4) var<storage, read_write> state: array<vec2<f32>>;  // [step's n][splits][n_head]
// Sum of exp(score - largest) * v; unwritten where the state's sum is 0.
@group(0) @binding(5) var<storage, read_write> sums: array<vec4<f32>>;   // [step's n][splits][n_head][D/4]
#if sparse
@group(0) @binding(6) var<storage, read> blocks: array<u32>;        // [step's n][most] ascending
#endif
@group(0) @binding(8) var<uniform> p: Params;

#if sparse
#import shared/selected

// Keys of the piece in the list of query `token`.
fn visible(token: u32) -> u32 {
    let query = p.first + token;
    let end = listed_before(query, p.piece_first + p.piece_tokens);
    return end - listed_before(query, p.piece_first);
}

fn key_row(at: Place, key: u32) -> u32 {
    return listed_position(p.first + at.token, at.listed + key) - p.piece_first;
}

// Every key of the workgroup's split, since that has one query.
fn row_visible(at: Place, row: u32) -> u32 {
    return select(0u, at.end, row_exists(at, row));
}
#else
// Keys of the piece at or before the position of query `token`.
fn visible(token: u32) -> u32 {
    let position = positions[p.first + token];
    return min(max(position + 1u, p.piece_first) - p.piece_first, p.piece_tokens);
}

// Row of the piece that key `key` of those that the queries see is in.
fn key_row(at: Place, key: u32) -> u32 {
    return key;
}

// Keys of the piece that the row may see; none for a row that does not exist.
fn row_visible(at: Place, row: u32) -> u32 {
    if !row_exists(at, row) { return 0u; }
    return visible(row_token(at, row));
}
#endif

struct Place {
    kv_head: u32,
    token: u32,   // of row 0, among this dispatch's
    head: u32,    // of row 0, within the group
    split: u32,
    begin: u32,   // keys of this split, counted from the first that the queries see
    end: u32,
#if sparse
    listed: u32,  // entries of the query's list before the piece
#endif
}

fn place_of(group: u32) -> Place {
    let kv_head = group % p.n_kv;
    let block = group / p.n_kv % p.blocks;
    let split = group / p.n_kv / p.blocks % p.splits;
    let token = group / p.n_kv / p.blocks / p.splits * TOKENS;
    let seen = visible(min(token + TOKENS, p.n) - 1u);
    let even = (seen + p.splits - 1u) / p.splits;
    let share = max((even + 63u) / 64u * 64u, p.least);
    let begin = min(split * share, seen);
    let end = min(begin + share, seen);
#if sparse
    let listed = listed_before(p.first + token, p.piece_first);
    return Place(kv_head, token, block * HEADS, split, begin, end, listed);
#else
    return Place(kv_head, token, block * HEADS, split, begin, end);
#endif
}

fn row_token(at: Place, row: u32) -> u32 {
    return at.token + row / HEADS;
}

fn row_exists(at: Place, row: u32) -> bool {
    return row < ROWS && row_token(at, row) < p.n && at.head + row % HEADS < p.heads;
}

fn row_head(at: Place, row: u32) -> u32 {
    return at.kv_head * p.heads + at.head + row % HEADS;
}

fn row_slot(at: Place, row: u32) -> u32 {
    return ((p.first + row_token(at, row)) * p.splits + at.split) * p.n_head + row_head(at, row);
}

// Where the row's query starts in q; for a row that does not exist, where some other's does.
fn row_query(at: Place, row: u32) -> u32 {
    let token = p.first + min(row_token(at, row), p.n - 1u);
    let head = at.kv_head * p.heads + min(at.head + row % HEADS, p.heads - 1u);
    return (token * p.n_head + head) * (D / 4u);
}

// Stores the row's state, joined with what is there if `carry`; returns what the new sums and those
// that are there are multiplied by (the latter 0 where there are none).
fn join_state(at: Place, row: u32, carry: bool, largest: f32, total: f32) -> vec2<f32> {
    if !row_exists(at, row) { return vec2(0.0); }
    let slot = row_slot(at, row);
    if !carry {
        state[slot] = vec2(largest, total);
        return vec2(1.0, 0.0);
    }
    let earlier = state[slot];
    let both = max(largest, earlier.x);
    var scale = vec2(exp(largest - both), exp(earlier.x - both));
    state[slot] = vec2(both, total * scale.x + earlier.y * scale.y);
    if earlier.y == 0.0 { scale.y = 0.0; }
    return scale;
}

// Stores a vec4 of the row's sums, joined likewise; what was never written is not read.
fn join_sums(i: u32, sum: vec4<f32>, scale: vec2<f32>) {
    if scale.y == 0.0 {
        sums[i] = sum;
    } else {
        sums[i] = sum * scale.x + sums[i] * scale.y;
    }
}

// a + w * b, and a + b . c, one fused operation a product.
fn plus(a: Eight, w: f32, b: Eight) -> Eight {
    return Eight(a.lo + w * b.lo, a.hi + w * b.hi);
}

fn plus_dot(a: f32, b: vec4<f32>, c: vec4<f32>) -> f32 {
    return (((a + b.x * c.x) + b.y * c.y) + b.z * c.z) + b.w * c.w;
}

// Eight `i` of the key or value in row `row` of the piece as stored, so that loads can be under way
// together.
fn load_key(at: Place, row: u32, i: u32) -> Packed_$K {
    let place = places_$K(p.base + row, p.n_kv * EIGHTS, at.kv_head * EIGHTS + i);
    return join_$K(keys[place.x], keys[place.y], place.z);
}

fn load_value(at: Place, row: u32, i: u32) -> Packed_$V {
    let place = places_$V(p.base + row, p.n_kv * EIGHTS, at.kv_head * EIGHTS + i);
    return join_$V(values[place.x], values[place.y], place.z);
}
