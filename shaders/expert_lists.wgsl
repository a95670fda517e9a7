// The pairs (token, slot) sorted by expert, in rising order within one, and the tiles of at most
// p.tile of them that `tile_product.wgsl` takes: entry 0 is (number of tiles, 0, 0, 0), the others
// (expert, first place in the list, count, 0). One workgroup an expert; no atomics, so the order,
// and with it every sum, is always the same.

#import shared/grid

struct Params {
    first: u32,     // pair to start from
    n: u32,
    n_expert: u32,
    tile: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<u32>;                // [token][slot] experts
@group(0) @binding(1) var<storage, read> counts: array<u32>;             // [n_expert]
@group(0) @binding(2) var<storage, read_write> pairs: array<u32>;        // [n], from p.first
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4<u32>>;  // [1 + tiles]
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;
var<workgroup> before: array<vec2<u32>, WG>;  // pairs and tiles of lower experts
var<workgroup> found: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let expert = flat_workgroup(id, groups);
    if expert >= p.n_expert { return; }
    var lower = vec2(0u);
    for (var e = local; e < expert; e += WG) {
        lower += vec2(counts[e], tiles_of(counts[e]));
    }
    before[local] = lower;

    // Each invocation lists its share of the pairs, behind the shares of lower invocations.
    let share = (p.n + WG - 1u) / WG;
    let end = min((local + 1u) * share, p.n);
    var mine = 0u;
    for (var i = local * share; i < end; i++) {
        if min(ids[p.first + i], p.n_expert - 1u) == expert { mine++; }
    }
    found[local] = mine;
    workgroupBarrier();

    var start = vec2(0u);
    for (var l = 0u; l < WG; l++) { start += before[l]; }
    var place = start.x;
    for (var l = 0u; l < local; l++) { place += found[l]; }
    for (var i = local * share; i < end; i++) {
        if min(ids[p.first + i], p.n_expert - 1u) == expert {
            pairs[place] = i;
            place++;
        }
    }
    let count = counts[expert];
    for (var i = local; i < tiles_of(count); i += WG) {
        let size = min(count - i * p.tile, p.tile);
        tiles[1u + start.y + i] = vec4(expert, start.x + i * p.tile, size, 0u);
    }
    if expert == p.n_expert - 1u && local == 0u {
        tiles[0] = vec4(start.y + tiles_of(count), 0u, 0u, 0u);
    }
}

fn tiles_of(count: u32) -> u32 {
    return (count + p.tile - 1u) / p.tile;
}
