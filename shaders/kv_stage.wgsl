// The keys, or the values, of one piece of the history from host memory to the device, as they are
// stored: tiles of rows before the step's first position from their segment, others from the copy
// that the step has left on the device. spec/kv-offload.md 5. Each 16 bytes are read once; a
// workgroup copies every `groups`th page.

#import shared/grid

const WG: u32 = 256u;
const PAGE: u32 = 64u;  // tokens

struct Params {
    groups: u32,
    pages: u32,        // of the piece
    n: u32,            // tokens of the step
    piece_first: u32,  // position of the piece's first token, the first of a page
    row: u32,          // its row in the segment, a multiple of a page
    tile: u32,         // vec4 a tile of 8 rows
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;            // [n] consecutive
@group(0) @binding(1) var<storage, read> segment: array<vec4<u32>>;        // [token]
@group(0) @binding(2) var<storage, read> kept: array<vec4<u32>>;           // [token], from the step's first page on
@group(0) @binding(3) var<storage, read_write> out: array<vec4<u32>>;           // [token]
@group(0) @binding(4) var<storage, read_write> copied: array<atomic<u32>>; // [2] bytes, low word first
#if sparse
@group(0) @binding(5) var<storage, read> marks: array<u32>;                // a bit a page
#endif
@group(0) @binding(8) var<uniform> p: Params;

fn is_read(first: u32) -> bool {
#if sparse
    let page = first / PAGE;
    return ((marks[page / 32u] >> (page % 32u)) & 1u) == 1u;
#else
    return true;
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let start = positions[0];
    var rows = 0u;
    for (var page = group; page < p.pages; page += p.groups) {
        let first = p.piece_first + page * PAGE;
        if first >= start + p.n { break; }
        if !is_read(first) { continue; }
        rows += select(0u, min(start - first, PAGE), first < start);
        let words = PAGE / 8u * p.tile;
        let source = (p.row / PAGE + page) * words;
        let own = (first / PAGE - start / PAGE) * words;
        for (var i = lane; i < words; i += WG) {
            let position = first + i / p.tile * 8u;
            // The segment has all rows, also those of a tile of both kinds.
            if position < start {
                out[page * words + i] = segment[source + i];
            } else if position < start + p.n {
                out[page * words + i] = kept[own + i];
            }
        }
    }
    if lane == 0u && rows > 0u {
        let bytes = rows * p.tile * 2u;
        let before = atomicAdd(&copied[0], bytes);
        if before + bytes < before { atomicAdd(&copied[1], 1u); }
    }
}
