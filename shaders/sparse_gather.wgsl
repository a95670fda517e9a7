// The keys and values in one segment that a decode step's query attends to, copied to their places
// in its list, as they are stored. spec/architectures.md 4.5.4. Each row is read once, 16 bytes a
// lane; a workgroup copies every `groups`th row.

#import shared/grid

const WG: u32 = 64u;

struct Params {
    groups: u32,
    shift: u32,           // log2 of the tokens a block
    most: u32,            // blocks a query selects
    segment_first: u32,   // position of the segment's first token
    segment_tokens: u32,
    k_row: u32,           // vec4 a token
    v_row: u32,
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;           // [1]
@group(0) @binding(1) var<storage, read> blocks: array<u32>;              // [most] ascending
@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;          // [token][k_row]
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;        // [token][v_row]
@group(0) @binding(4) var<storage, read_write> k_out: array<vec4<u32>>;   // [entry][k_row]
@group(0) @binding(5) var<storage, read_write> v_out: array<vec4<u32>>;   // [entry][v_row]
@group(0) @binding(6) var<storage, read_write> last: array<u32>;          // [1] the last entry
@group(1) @binding(0) var<uniform> p: Params;

#import shared/selected

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let end = listed_before(0u, p.segment_first + p.segment_tokens);
    for (var entry = listed_before(0u, p.segment_first) + group; entry < end; entry += p.groups) {
        let row = listed_position(0u, entry) - p.segment_first;
        for (var i = lane; i < p.k_row; i += WG) {
            k_out[entry * p.k_row + i] = keys[row * p.k_row + i];
        }
        for (var i = lane; i < p.v_row; i += WG) {
            v_out[entry * p.v_row + i] = values[row * p.v_row + i];
        }
    }
    // The segment of the query's own position has the end of the list.
    if group == 0u && lane == 0u && positions[0] - p.segment_first < p.segment_tokens {
        last[0] = end - 1u;
    }
}
