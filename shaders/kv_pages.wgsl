// pages[w] bit i = some query of the step reads a token of page 32 w + i: of a selected block or of
// the incomplete block at the end. spec/kv-offload.md 5. One workgroup a word, whose lanes share
// out the queries: reads 4 bytes a block selected.

#import shared/grid

const WG: u32 = 64u;
const PAGE: u32 = 64u;  // tokens

struct Params {
    groups: u32,  // words
    n: u32,
    shift: u32,   // log2 of the tokens a block, which is within a page
    most: u32,    // blocks a query selects
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;     // [n]
@group(0) @binding(1) var<storage, read> blocks: array<u32>;        // [n][most] ascending
@group(0) @binding(2) var<storage, read_write> pages: array<u32>;   // [groups]
@group(0) @binding(8) var<uniform> p: Params;

#import shared/selected

var<workgroup> marks: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let word = flat_workgroup(id, groups);
    if word >= p.groups { return; }
    if lane == 0u { atomicStore(&marks, 0u); }
    workgroupBarrier();
    let first = word * 32u * PAGE;
    var own = 0u;
    for (var query = lane; query < p.n; query += WG) {
        let end = listed_before(query, first + 32u * PAGE);
        for (var i = listed_before(query, first); i < end; i += 1u << p.shift) {
            own |= 1u << ((listed_position(query, i) - first) / PAGE);
        }
    }
    atomicOr(&marks, own);
    workgroupBarrier();
    if lane == 0u { pages[word] = atomicLoad(&marks); }
}
