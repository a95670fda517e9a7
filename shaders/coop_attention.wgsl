// `attention_prefill.wgsl` by cooperative matrices, the multipliers of tiles that GPUs have: f16
// operands, f32 sums. spec/architectures.md 1.3 step 5. Four subgroups multiply, any more only load.
//
// By 64 keys: q . k, 32 dims at a time in workgroup memory, 16 keys a subgroup; scores go by way of
// workgroup memory to registers, where the softmax is; then, by 16 keys, weights times values, a
// quarter of the columns a subgroup. Each key and value is read and unpacked once for all rows;
// 4 * ROWS operations a pair of cache values.
//
// Nothing but products can change sums in matrices, so they are not multiplied anew when a row's
// largest score grows: weights are relative to a score of the row, and at most 16. Past that all sums
// so far are joined with those in memory, as at the end of a piece, and start from zero.

#import shared/matrices
#import shared/attention

const PARTS: u32 = 4u;
const WG: u32 = PARTS * $LANES;
const TILE: u32 = 64u;   // keys
const SLICE: u32 = 16u;  // keys of a subgroup in q . k; keys a step of the product with v
const FULL: u32 = (ROWS + EDGE - 1u) / EDGE * EDGE;     // rows, filled to matrices
const SHARES: u32 = (4u * FULL + WG - 1u) / WG;         // quarters of rows that an invocation has
const KEY_LOADS: u32 = (4u * TILE + WG - 1u) / WG;      // eights in a step of 32 dims
const VALUE_LOADS: u32 = (D + WG - 1u) / WG;            // pairs of eights in a slice
const GROWTH: f32 = 2.7725887;                          // ln 16
const V_UNIT: f32 = max(UNIT_$V, 16.0);                 // times a weight still within f16, mostly

// Matrices of a subgroup along rows, its keys, and the eights of v.
const NX: u32 = FULL / EDGE;
const NK: u32 = SLICE / EDGE;
const NE: u32 = EIGHTS / EDGE;

// Pairs of halves. First 32 dims of keys [64][STRIDE] and, from QUERIES on, of queries [row][STRIDE];
// then 16 values of each column of v [j][eight][8], column j of each eight together so that lanes with
// neighbouring eights write to different banks, and from WEIGHTS on weights [row][8].
const STRIDE: u32 = 20u;
const QUERIES: u32 = TILE * STRIDE;
const WEIGHTS: u32 = 8u * D;
var<workgroup> tile: array<vec2<f16>, max(QUERIES + FULL * STRIDE, WEIGHTS + 8u * FULL)>;
// Scores of a subgroup [row][16 keys], each row 5 vec4s apart; or a vec4 a row; or four matrices.
var<workgroup> window: array<vec4<f32>, max(5u * FULL, EDGE * EDGE)>;
var<workgroup> units: array<f32, FULL>;         // [row] powers of two that queries are divided by
var<workgroup> join: array<vec2<f32>, FULL>;    // [row]
var<workgroup> grown: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let at = place_of(group);
    if at.begin >= at.end {
        for (var row = local; p.carry == 0u && row < FULL; row += WG) {
            if row_exists(at, row) { state[row_slot(at, row)] = vec2(LOWEST, 0.0); }
        }
        return;
    }

    // Four invocations share a row.
    var queries: array<u32, SHARES>;
    var seen: array<u32, SHARES>;
    var largest: array<f32, SHARES>;
    var total: array<f32, SHARES>;
    for (var i = 0u; i < SHARES; i++) {
        let row = (i * WG + local) / 4u;
        queries[i] = row_query(at, row) + local % 4u * 2u;
        seen[i] = min(row_visible(at, row), at.end);
        largest[i] = LOWEST;
        var most = 0.0;
        for (var quad = local % 4u; quad < D / 4u; quad += 4u) {
            let v = abs(q[row_query(at, row) + quad]);
            most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
        }
        if row < FULL { window[row][local % 4u] = most; }
    }
    workgroupBarrier();
    for (var row = local; row < FULL; row += WG) {
        let most = max(max(window[row].x, window[row].y), max(window[row].z, window[row].w));
        // Queries are at most 1/4, so that with the largest keys products are within f16, too, for
        // drivers that round them.
        units[row] = bitcast<f32>(u32(clamp(i32(bitcast<u32>(most) >> 23u) + 3, 1, 253)) << 23u);
    }

    var sums: array<Sums, NX * 2u * NE>;
    var earlier = p.carry == 1u;
    for (var first = at.begin; ; first += TILE) {
        let last = first >= at.end;
        var scores: array<Sums, NX * NK>;
        for (var dim = 0u; dim < D * u32(!last); dim += 32u) {
            workgroupBarrier();
            for (var j = 0u; j < KEY_LOADS; j++) {
                let i = j * WG + local;
                if i >= 4u * TILE { continue; }
                let k = unpack_$K(load_key(at, min(first + i / 4u, at.end - 1u), dim / 8u + i % 4u));
                put(i / 4u * STRIDE + i % 4u * 4u, k, 1.0 / UNIT_$K);
            }
            for (var j = 0u; j < SHARES; j++) {
                let i = j * WG + local;
                if i >= 4u * FULL { continue; }
                let quad = queries[j] + dim / 4u;
                let to = QUERIES + i / 4u * STRIDE + i % 4u * 4u;
                put(to, Eight(q[quad], q[quad + 1u]), inverse(units[i / 4u]));
            }
            if local == 0u { atomicStore(&grown, 0u); }
            workgroupBarrier();
            if subgroup < PARTS {
                for (var k = 0u; k < 32u; k += EDGE) {
                    var b: array<Right, NK>;
                    for (var r = 0u; r < NK; r++) {
                        let key = subgroup * SLICE + r * EDGE;
                        b[r] = coopLoad<Right>(&tile[key * STRIDE + k / 2u], STRIDE);
                    }
                    for (var q = 0u; q < NX; q++) {
                        let row = QUERIES + q * EDGE * STRIDE;
                        let a = coopLoadT<Left>(&tile[row + k / 2u], STRIDE);
                        for (var r = 0u; r < NK; r++) {
                            scores[q * NK + r] = coopMultiplyAdd(a, b[r], scores[q * NK + r]);
                        }
                    }
                }
            }
        }

        // Of each slice of 16 keys four scores, then weights.
        var x: array<vec4<f32>, 4u * SHARES>;
        var best: array<f32, SHARES>;
        if !last {
            for (var part = 0u; part < PARTS; part++) {
                workgroupBarrier();
                if subgroup == part {
                    for (var i = 0u; i < NX * NK; i++) {
                        let to = i / NK * EDGE * 5u + i % NK * (EDGE / 4u);
                        coopStoreT(scores[i], &window[to], 5u);
                    }
                }
                workgroupBarrier();
                for (var i = 0u; i < SHARES; i++) {
                    let row = min((i * WG + local) / 4u, FULL - 1u);
                    let key = first + SLICE * part + local % 4u * 4u;
                    let live = vec4(key) + vec4(0u, 1u, 2u, 3u) < vec4(seen[i]);
                    let score = window[5u * row + local % 4u] * (units[row] * UNIT_$K * p.scale);
                    x[4u * i + part] = select(vec4(LOWEST), score, live);
                }
            }
            workgroupBarrier();
            for (var i = 0u; i < SHARES; i++) {
                let row = (i * WG + local) / 4u;
                let m = max(max(x[4u * i], x[4u * i + 1u]), max(x[4u * i + 2u], x[4u * i + 3u]));
                if row < FULL { window[row][local % 4u] = max(max(m.x, m.y), max(m.z, m.w)); }
            }
            workgroupBarrier();
            for (var i = 0u; i < SHARES; i++) {
                let m = window[min((i * WG + local) / 4u, FULL - 1u)];
                best[i] = max(max(m.x, m.y), max(m.z, m.w));
                if largest[i] == LOWEST { largest[i] = best[i]; }
                if best[i] > largest[i] + GROWTH { atomicStore(&grown, 1u); }
            }
        }
        workgroupBarrier();
        if last || atomicLoad(&grown) == 1u {
            for (var i = 0u; i < SHARES; i++) {
                let row = (i * WG + local) / 4u;
                if row < FULL { window[row][local % 4u] = total[i]; }
            }
            workgroupBarrier();
            for (var i = 0u; i < SHARES; i++) {
                let row = (i * WG + local) / 4u;
                if local % 4u == 0u && row < FULL {
                    let all = dot(window[row], vec4(1.0));
                    join[row] = join_state(at, row, earlier, largest[i], all);
                }
            }
            // Four columns of EDGE rows and eights at a time.
            for (var q = 0u; q < NX; q++) {
                for (var e = 0u; e < NE; e++) {
                    for (var half = 0u; half < 2u; half++) {
                        workgroupBarrier();
                        if subgroup / 2u == half {
                            for (var j = 0u; j < 2u; j++) {
                                let to = (subgroup % 2u * 2u + j) * (EDGE * EDGE / 4u);
                                coopStoreT(sums[(q * 2u + j) * NE + e], &window[to], EDGE / 4u);
                            }
                        }
                        workgroupBarrier();
                        for (var i = local; i < EDGE * EDGE; i += WG) {
                            let row = q * EDGE + i / EDGE;
                            if row_exists(at, row) {
                                let eight = row_slot(at, row) * EIGHTS + e * EDGE + i % EDGE;
                                join_sums(2u * eight + half, V_UNIT * columns(i), join[row]);
                            }
                        }
                    }
                }
            }
            if last { break; }
            earlier = true;
            for (var i = 0u; i < NX * 2u * NE; i++) { sums[i] = Sums(); }
            for (var i = 0u; i < SHARES; i++) {
                total[i] = 0.0;
                largest[i] = max(largest[i], best[i]);
            }
        }

        for (var i = 0u; i < SHARES; i++) {
            for (var part = 0u; part < PARTS; part++) {
                let key = first + SLICE * part + local % 4u * 4u;
                let live = vec4(key) + vec4(0u, 1u, 2u, 3u) < vec4(seen[i]);
                x[4u * i + part] =
                    select(vec4(0.0), exp(x[4u * i + part] - largest[i]), live);
                total[i] += dot(x[4u * i + part], vec4(1.0));
            }
        }
        for (var part = 0u; part < PARTS; part++) {
            let key = first + SLICE * part;
            if key < at.end {
                workgroupBarrier();
                for (var i = 0u; i < SHARES; i++) {
                    let row = (i * WG + local) / 4u;
                    if row < FULL {
                        let to = WEIGHTS + 8u * row + local % 4u * 2u;
                        tile[to] = vec2<f16>(x[4u * i + part].xy);
                        tile[to + 1u] = vec2<f16>(x[4u * i + part].zw);
                    }
                }
                for (var j = 0u; j < VALUE_LOADS; j++) {
                    let i = j * WG + local;
                    if i < D { put_values(at, key + i % 8u * 2u, i / 8u, i % 8u); }
                }
                workgroupBarrier();
                if subgroup < PARTS {
                    for (var k = 0u; k < SLICE; k += EDGE) {
                        var a: array<Left, NX>;
                        for (var q = 0u; q < NX; q++) {
                            a[q] = coopLoadT<Left>(&tile[WEIGHTS + q * EDGE * 8u + k / 2u], 8u);
                        }
                        for (var i = 0u; i < 2u * NE; i++) {
                            let column = (2u * subgroup + i / NE) * EIGHTS + i % NE * EDGE;
                            let b = coopLoad<Right>(&tile[column * 8u + k / 2u], 8u);
                            for (var q = 0u; q < NX; q++) {
                                let s = q * 2u * NE + i;
                                sums[s] = coopMultiplyAdd(a[q], b, sums[s]);
                            }
                        }
                    }
                }
            }
        }
    }
}

// 1 / x of a power of two.
fn inverse(x: f32) -> f32 {
    return bitcast<f32>((254u << 23u) - bitcast<u32>(x));
}

fn put(i: u32, e: Eight, factor: f32) {
    tile[i] = vec2<f16>(e.lo.xy * factor);
    tile[i + 1u] = vec2<f16>(e.lo.zw * factor);
    tile[i + 2u] = vec2<f16>(e.hi.xy * factor);
    tile[i + 3u] = vec2<f16>(e.hi.zw * factor);
}

// Eight `eight` of the values of `key` and the next, side by side: pair `pair` of their columns.
fn put_values(at: Place, key: u32, eight: u32, pair: u32) {
    let a = unpack_$V(load_value(at, min(key, at.end - 1u), eight));
    let b = unpack_$V(load_value(at, min(key + 1u, at.end - 1u), eight));
    for (var j = 0u; j < 4u; j++) {
        let to = (j * EIGHTS + eight) * 8u + pair;
        tile[to] = vec2<f16>(vec2(a.lo[j], b.lo[j]) * (1.0 / V_UNIT));
        tile[to + 32u * EIGHTS] = vec2<f16>(vec2(a.hi[j], b.hi[j]) * (1.0 / V_UNIT));
    }
}

// What is in place `i` of each of the four matrices in `window`.
fn columns(i: u32) -> vec4<f32> {
    let step = EDGE * EDGE / 4u;
    let at = i / 4u;
    return vec4(
        window[at][i % 4u], window[at + step][i % 4u],
        window[at + 2u * step][i % 4u], window[at + 3u * step][i % 4u],
    );
}
