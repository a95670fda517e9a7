// Running softmax(q . k * scale) . v of up to 64 rows (queries times query heads of a kv head's
// group) over one split of a piece, causal. spec/architectures.md 1.3 step 5.
//
// By 64 keys: q . k as a tiled product (4 rows x 4 keys a lane, 16 dims at a time in workgroup
// memory), the softmax of those in registers, then the product with v (a lane owns 8 values of
// LANE_ROWS rows), the weights of 16 keys and some of their values at a time in workgroup memory.
// Each key and value is read and unpacked once for all rows; those past the last query's position
// not at all. 4 * ROWS operations a pair of cache values.

#import shared/attention

const WG: u32 = 256u;
const TILE: u32 = 64u;
const FOURS: u32 = TILE / 4u;  // of rows, and of keys of a tile
const SLICE: u32 = 16u;        // keys whose weights are in workgroup memory at a time
const GAP: u32 = 5u;           // vec4 of 16 dims of a row, and one to spread memory banks
const LANE_GROUPS: u32 = WG / EIGHTS;
const LANE_FOURS: u32 = (ROWS + 4u * LANE_GROUPS - 1u) / (4u * LANE_GROUPS);
const LANE_ROWS: u32 = 4u * LANE_FOURS;
const STAGE: u32 = min(LANE_GROUPS, SLICE);  // keys whose values are in workgroup memory at a time

// First 16 dims of queries [64 rows][GAP] and keys [64][GAP]; then each lane's maxima; then weights
// [16 keys][64 rows / 4] and, from VALUES on, values [STAGE keys][D / 4].
const VALUES: u32 = SLICE * FOURS;
var<workgroup> tiles: array<vec4<f32>, VALUES + 2u * WG>;
// By rows / 4: keys that rows see, their largest scores, what earlier sums are multiplied by.
var<workgroup> seen: array<vec4<u32>, FOURS>;
var<workgroup> largest: array<vec4<f32>, FOURS>;
var<workgroup> decay: array<vec4<f32>, FOURS>;
var<workgroup> join: array<vec2<f32>, TILE>;    // [row]

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
    // The four rows and the four keys of this lane in q . k and in the softmax.
    let four = lane / FOURS;
    let column = lane % FOURS;
    if at.begin >= at.end {
        if p.carry == 0u && column == 0u {
            for (var row = 4u * four; row < 4u * four + 4u; row++) {
                if row_exists(at, row) { state[row_slot(at, row)] = vec2(LOWEST, 0.0); }
            }
        }
        return;
    }
    if lane < TILE { seen[lane / 4u][lane % 4u] = min(row_visible(at, lane), at.end); }
    if lane < FOURS { largest[lane] = vec4(LOWEST); }
    var total = vec4<f32>();
    let query = row_query(at, lane / 4u) + lane % 4u;
    let eight = lane % EIGHTS;
    let lane_row = lane / EIGHTS * LANE_ROWS;
    var acc: array<Eight, LANE_ROWS>;

    for (var tile = at.begin; tile < at.end; tile += TILE) {
        var s = array<vec4<f32>, 4>(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
        for (var dim = 0u; dim < D / 4u; dim += 4u) {
            workgroupBarrier();
            if dim + lane % 4u < D / 4u { tiles[lane / 4u * GAP + lane % 4u] = q[query + dim]; }
            let key = lane / 2u;
            let half = dim / 2u + lane % 2u;
            if key < TILE && half < EIGHTS {
                let k = unpack_$K(load_key(at, min(tile + key, at.end - 1u), half));
                let to = TILE * GAP + (key % 4u * 16u + key / 4u) * GAP + lane % 2u * 2u;
                tiles[to] = k.lo;
                tiles[to + 1u] = k.hi;
            }
            workgroupBarrier();
            for (var c = 0u; c < min(4u * p.one, D / 4u - dim); c++) {
                dots(c, 4u * four, column, &s);
            }
        }

        // From here on by keys: vec4s of the four rows.
        var live: array<vec4<bool>, 4>;
        var w: array<vec4<f32>, 4>;
        for (var j = 0u; j < 4u; j++) {
            live[j] = vec4(tile + 4u * column + j) < seen[four];
            let score = p.scale * vec4(s[0][j], s[1][j], s[2][j], s[3][j]);
            w[j] = select(vec4(LOWEST), score, live[j]);
        }
        workgroupBarrier();
        tiles[lane] = max(max(w[0], w[1]), max(w[2], w[3]));
        workgroupBarrier();
        let before = largest[four];
        var best = before;
        for (var i = 0u; i < FOURS; i++) { best = max(best, tiles[four * FOURS + i]); }
        let fade = exp(before - best);
        total *= fade;
        for (var j = 0u; j < 4u; j++) {
            w[j] = select(vec4(0.0), exp(w[j] - best), live[j]);
            total += w[j];
        }
        if column == 0u { decay[four] = fade; }
        workgroupBarrier();
        if column == 0u { largest[four] = best; }
        for (var f = 0u; f < LANE_FOURS; f++) {
            let fade = decay[min(lane_row / 4u + f, FOURS - 1u)];
            for (var r = 0u; r < 4u; r++) {
                acc[4u * f + r].lo *= fade[r];
                acc[4u * f + r].hi *= fade[r];
            }
        }
        for (var slice = 0u; slice < TILE && tile + slice < at.end; slice += SLICE) {
            for (var stage = 0u; stage < SLICE; stage += STAGE) {
                workgroupBarrier();
                if stage == 0u && column / 4u == slice / SLICE {
                    for (var j = 0u; j < 4u; j++) {
                        tiles[(column % 4u * 4u + j) * FOURS + four] = w[j];
                    }
                }
                if lane < STAGE * EIGHTS {
                    let key = min(tile + slice + stage + lane / EIGHTS, at.end - 1u);
                    let v = unpack_$V(load_value(at, key, eight));
                    tiles[VALUES + 2u * lane] = v.lo;
                    tiles[VALUES + 2u * lane + 1u] = v.hi;
                }
                workgroupBarrier();
                for (var i = 0u; i < min(STAGE * p.one, SLICE - stage); i++) {
                    let at_value = VALUES + 2u * (i * EIGHTS + eight);
                    let v = Eight(tiles[at_value], tiles[at_value + 1u]);
                    for (var f = 0u; f < LANE_FOURS; f++) {
                        let x = tiles[(stage + i) * FOURS + min(lane_row / 4u + f, FOURS - 1u)];
                        for (var r = 0u; r < 4u; r++) {
                            acc[4u * f + r] = plus(acc[4u * f + r], x[r], v);
                        }
                    }
                }
            }
        }
    }

    workgroupBarrier();
    tiles[lane] = total;
    workgroupBarrier();
    if column == 0u {
        for (var i = 1u; i < FOURS; i++) { total += tiles[lane + i]; }
        for (var r = 0u; r < 4u; r++) {
            join[4u * four + r] = join_state(at, 4u * four + r, p.carry == 1u, largest[four][r], total[r]);
        }
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
