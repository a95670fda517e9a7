// Running softmax(q . k * scale) . v of up to 8 rows (query heads of a kv head's group, and
// queries) over one split of a piece. spec/architectures.md 1.3 step 5.
//
// Memory bound: each key and value is read once for all rows, 16 bytes a lane. By 32 keys: 8
// lanes share a key and add up its dot products in workgroup memory; a lane a (row, key) does
// the softmax; then a lane owns 8 values of the head, and 256 / (D/8) lanes share out the keys.
// 4 * ROWS operations a pair of cache values.

#import shared/attention

const WG: u32 = 256u;
const TILE: u32 = 32u;
const PARTS: u32 = WG / TILE;     // lanes a key
const SHARES: u32 = WG / EIGHTS;  // lanes an eight of the values
const KEY_LOADS: u32 = (EIGHTS + PARTS - 1u) / PARTS;
const VALUE_LOADS: u32 = (TILE + SHARES - 1u) / SHARES;
const GAP: u32 = TILE + 4u;       // keeps lanes in different memory banks

// The queries [ROWS][D/4], ROWS * D <= 2048; at the end each lane's sums.
var<workgroup> queries: array<vec4<f32>, 2u * WG>;
var<workgroup> partial: array<f32, 4u * PARTS * GAP>;  // [row % 4][part][key]
var<workgroup> scores: array<f32, WG>;                 // [row][key]
var<workgroup> weights: array<f32, WG>;                // [key][row]
var<workgroup> decay: array<f32, 8>;                   // [row]
var<workgroup> join: array<vec2<f32>, 8>;              // [row]

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let at = place_of(group);
    // The (row, key) of this lane in the softmax, its eight and share in the sums.
    let row = lane / TILE;
    let column = lane % TILE;
    let eight = lane % EIGHTS;
    let share = lane / EIGHTS;
    if at.begin >= at.end {
        if p.carry == 0u && column == 0u && row_exists(at, row) {
            state[row_slot(at, row)] = vec2(LOWEST, 0.0);
        }
        return;
    }
    for (var i = lane; i < ROWS * D / 4u; i += WG) {
        queries[i] = q[row_query(at, i / (D / 4u)) + i % (D / 4u)] * p.scale;
    }
    let seen = row_visible(at, row);
    var largest = LOWEST;
    var total = 0.0;
    var acc: array<Eight, ROWS>;
    workgroupBarrier();

    for (var tile = at.begin; tile < at.end; tile += TILE) {
        let part = lane % PARTS;
        let key = key_row(at, min(tile + lane / PARTS, at.end - 1u));
        let count = min(TILE, at.end - tile);
        // All loads of the tile first, so that they are under way together.
        var k: array<Packed_$K, KEY_LOADS>;
        for (var c = 0u; c < KEY_LOADS; c++) {
            k[c] = load_key(at, key, min(part + c * PARTS, EIGHTS - 1u));
        }
        var v: array<Packed_$V, VALUE_LOADS>;
        for (var c = 0u; c < VALUE_LOADS; c++) {
            let row = key_row(at, tile + min(share + c * SHARES, count - 1u));
            v[c] = load_value(at, row, eight);
        }
        var x: array<Eight, KEY_LOADS>;
        for (var c = 0u; c < KEY_LOADS; c++) { x[c] = unpack_$K(k[c]); }
        // Four rows at a time, to stay within 16 KiB.
        var score = 0.0;
        for (var four = 0u; four < ROWS; four += 4u) {
            for (var r = four; r < min(four + 4u, ROWS); r++) {
                var sum = 0.0;
                for (var c = 0u; c < KEY_LOADS; c++) {
                    let i = part + c * PARTS;
                    if i < EIGHTS {
                        let source = r * (D / 4u) + 2u * i;
                        sum = plus_dot(sum, x[c].lo, queries[source]);
                        sum = plus_dot(sum, x[c].hi, queries[source + 1u]);
                    }
                }
                partial[((r - four) * PARTS + part) * GAP + lane / PARTS] = sum;
            }
            workgroupBarrier();
            if row / 4u == four / 4u {
                for (var i = 0u; i < PARTS; i++) {
                    score += partial[(row % 4u * PARTS + i) * GAP + column];
                }
            }
            workgroupBarrier();
        }

        let live = column < count && tile + column < seen;
        scores[lane] = select(LOWEST, score, live);
        workgroupBarrier();
        var best = largest;
        for (var i = 0u; i < count; i++) { best = max(best, scores[row * TILE + i]); }
        let weight = select(0.0, exp(score - best), live);
        let fade = exp(largest - best);
        total = total * fade + weight;
        largest = best;
        weights[column * 8u + row] = weight;
        if column == 0u { decay[row] = fade; }
        workgroupBarrier();

        if share < SHARES {
            for (var r = 0u; r < ROWS; r++) {
                acc[r].lo *= decay[r];
                acc[r].hi *= decay[r];
            }
            for (var c = 0u; c < VALUE_LOADS; c++) {
                let i = share + c * SHARES;
                if i < count {
                    let x = unpack_$V(v[c]);
                    for (var r = 0u; r < ROWS; r++) {
                        acc[r] = plus(acc[r], weights[i * 8u + r], x);
                    }
                }
            }
        }
    }

    scores[lane] = total;
    workgroupBarrier();
    if column == 0u {
        for (var i = 1u; i < TILE * p.one; i++) { total += scores[lane + i]; }
        join[row] = join_state(at, row, p.carry == 1u, largest, total);
    }
    for (var r = 0u; r < ROWS * p.one; r++) {
        var own = acc[0];
        for (var i = 1u; i < ROWS; i++) {
            own.lo = select(own.lo, acc[i].lo, i == r);
            own.hi = select(own.hi, acc[i].hi, i == r);
        }
        queries[2u * lane] = own.lo;
        queries[2u * lane + 1u] = own.hi;
        workgroupBarrier();
        if lane < 2u * EIGHTS && row_exists(at, r) {
            var sum = queries[lane];
            for (var i = 1u; i < SHARES * p.one; i++) { sum += queries[2u * i * EIGHTS + lane]; }
            join_sums(row_slot(at, r) * 2u * EIGHTS + lane, sum, join[r]);
        }
        workgroupBarrier();
    }
}
