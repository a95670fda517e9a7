// Running softmax(q . k * scale) . v of up to 64 rows (queries times query heads of a kv head's
// group) over one split of a piece, causal. spec/architectures.md 1.3 step 5.
//
// By 64 keys: q . k as a tiled product (4 rows x 4 keys a lane, 16 dims at a time in workgroup
// memory), then twice 32 keys of softmax and of the product with v (a lane owns 8 values of
// LANE_ROWS rows). Keys and values are read once for all rows; keys past the last query's
// position not at all. 4 * ROWS operations a pair of cache values.

#import shared/attention

const TILE: u32 = 64u;
const HALF: u32 = 32u;
const GAP: u32 = 5u;        // vec4 of 16 dims of a row, and one to spread memory banks
const WEIGHT_GAP: u32 = 9u; // vec4 of 32 keys of a row, likewise
const LANE_GROUPS: u32 = WG / EIGHTS;
const LANE_ROWS: u32 = (ROWS + LANE_GROUPS - 1u) / LANE_GROUPS;

// First the 16 dims of queries [64 rows][GAP] and keys [64][GAP], then scores and weights
// [64 rows][WEIGHT_GAP].
var<workgroup> tiles: array<vec4<f32>, 2u * TILE * GAP>;
var<workgroup> decay: array<f32, TILE>;  // [row]
var<workgroup> totals: array<f32, WG>;   // [row][4]
var<workgroup> join: array<vec2<f32>, TILE>;  // [row]

// Four dims of the dot products of 4 rows and 4 keys from `tiles`.
fn dots(i: u32, rows: u32, columns: u32, s: ptr<function, array<vec4<f32>, 4>>) {
    // Key 4 * c + j lies in row 16 * j + c.
    let k = TILE * GAP + columns * GAP + i;
    let k0 = tiles[k];
    let k1 = tiles[k + 16u * GAP];
    let k2 = tiles[k + 32u * GAP];
    let k3 = tiles[k + 48u * GAP];
    for (var r = 0u; r < 4u; r++) {
        let x = tiles[(rows + r) * GAP + i];
        (*s)[r] = vec4(
            plus_dot((*s)[r].x, x, k0), plus_dot((*s)[r].y, x, k1),
            plus_dot((*s)[r].z, x, k2), plus_dot((*s)[r].w, x, k3),
        );
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let at = place_of(group);
    // In the softmax four lanes share a row.
    let row = lane / 4u;
    let quarter = lane % 4u;
    if at.begin >= at.end {
        if p.carry == 0u && quarter == 0u && row_exists(at, row) {
            state[row_slot(at, row)] = vec2(LOWEST, 0.0);
        }
        return;
    }
    let seen = row_visible(at, row);
    var largest = LOWEST;
    var total = 0.0;
    let eight = lane % EIGHTS;
    let lane_row = lane / EIGHTS * LANE_ROWS;
    var acc: array<Eight, LANE_ROWS>;

    for (var tile = at.begin; tile < at.end; tile += TILE) {
        var s = array<vec4<f32>, 4>(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
        for (var dim = 0u; dim < D / 4u; dim += 4u) {
            workgroupBarrier();
            if dim + quarter < D / 4u {
                tiles[row * GAP + quarter] = row_query(at, row, dim + quarter);
            }
            let key = lane / 2u;
            let i = dim / 2u + lane % 2u;
            if key < TILE && i < EIGHTS {
                let k = unpack_$K(load_key(at, min(tile + key, at.end - 1u), i));
                let to = TILE * GAP + (key % 4u * 16u + key / 4u) * GAP + lane % 2u * 2u;
                tiles[to] = k.lo;
                tiles[to + 1u] = k.hi;
            }
            workgroupBarrier();
            for (var c = 0u; c < min(4u * p.one, D / 4u - dim); c++) {
                dots(c, lane / 16u * 4u, lane % 16u, &s);
            }
        }
        for (var base = tile; base < min(tile + TILE, at.end); base += HALF) {
            workgroupBarrier();
            if lane % 16u / 8u == (base - tile) / HALF {
                for (var r = 0u; r < 4u; r++) {
                    tiles[(lane / 16u * 4u + r) * WEIGHT_GAP + lane % 8u] = s[r];
                }
            }
            workgroupBarrier();

            let count = max(min(seen, at.end), base) - base;
            var best = largest;
            for (var i = 0u; i < HALF / 4u; i++) {
                let live = vec4(4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(count);
                let score = select(vec4(LOWEST), tiles[row * WEIGHT_GAP + i], live);
                best = max(best, max(max(score.x, score.y), max(score.z, score.w)));
            }
            let fade = exp(largest - best);
            largest = best;
            total *= fade;
            var own: array<vec4<f32>, 2>;
            for (var i = 0u; i < 2u; i++) {
                let source = 2u * quarter + i;
                let live = vec4(4u * source) + vec4(0u, 1u, 2u, 3u) < vec4(count);
                own[i] = select(vec4(0.0), exp(tiles[row * WEIGHT_GAP + source] - best), live);
                total += dot(own[i], vec4(1.0));
            }
            workgroupBarrier();
            tiles[row * WEIGHT_GAP + 2u * quarter] = own[0];
            tiles[row * WEIGHT_GAP + 2u * quarter + 1u] = own[1];
            if quarter == 0u { decay[row] = fade; }
            workgroupBarrier();

            if lane_row < ROWS {
                for (var r = 0u; r < LANE_ROWS; r++) {
                    let fade = decay[min(lane_row + r, TILE - 1u)];
                    acc[r].lo *= fade;
                    acc[r].hi *= fade;
                }
                for (var i = 0u; i < HALF && base + i < at.end; i += 4u) {
                    let v0 = unpack_$V(load_value(at, base + i, eight));
                    let v1 = unpack_$V(load_value(at, min(base + i + 1u, at.end - 1u), eight));
                    let v2 = unpack_$V(load_value(at, min(base + i + 2u, at.end - 1u), eight));
                    let v3 = unpack_$V(load_value(at, min(base + i + 3u, at.end - 1u), eight));
                    for (var r = 0u; r < LANE_ROWS; r++) {
                        let w = tiles[min(lane_row + r, TILE - 1u) * WEIGHT_GAP + i / 4u];
                        acc[r] = plus(acc[r], w.x, v0);
                        acc[r] = plus(acc[r], w.y, v1);
                        acc[r] = plus(acc[r], w.z, v2);
                        acc[r] = plus(acc[r], w.w, v3);
                    }
                }
            }
        }
    }

    totals[lane] = total;
    workgroupBarrier();
    if quarter == 0u {
        total += totals[lane + 1u] + totals[lane + 2u] + totals[lane + 3u];
        join[row] = join_state(at, row, largest, total);
    }
    workgroupBarrier();
    for (var r = 0u; r < LANE_ROWS * p.one; r++) {
        if row_exists(at, lane_row + r) {
            var sum = acc[0];
            for (var i = 1u; i < LANE_ROWS; i++) {
                sum.lo = select(sum.lo, acc[i].lo, i == r);
                sum.hi = select(sum.hi, acc[i].hi, i == r);
            }
            let to = (row_slot(at, lane_row + r) * EIGHTS + eight) * 2u;
            join_sums(to, sum.lo, join[lane_row + r]);
            join_sums(to + 1u, sum.hi, join[lane_row + r]);
        }
    }
}
