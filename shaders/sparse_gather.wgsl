// The keys and values in one segment that a decode step's query attends to, copied to their places
// in its list, as they are stored. spec/architectures.md 4.5.4. Each row is read once, 16 bytes a
// lane; a workgroup copies every `groups`th row.

#import shared/grid

const WG: u32 = 64u;

struct Params {
    groups: u32,
    query: u32,           // its row in positions and blocks
    shift: u32,           // log2 of the tokens a block
    most: u32,            // blocks a query selects
    segment_first: u32,   // position of the segment's first token
    segment_tokens: u32,
    // Cells a token; the scales' are 0 in types without.
    k_values: u32,
    k_scales: u32,
    v_values: u32,
    v_scales: u32,
}

// Of what all parts of a row are a whole number.
#if words
alias Cell = u32;
#else
alias Cell = vec4<u32>;
#endif

@group(0) @binding(0) var<storage, read> positions: array<u32>;           // [step's n]
@group(0) @binding(1) var<storage, read> blocks: array<u32>;              // [step's n][most] ascending
@group(0) @binding(2) var<storage, read> keys: array<Cell>;               // [token]
@group(0) @binding(3) var<storage, read> values: array<Cell>;             // [token]
@group(0) @binding(4) var<storage, read_write> k_out: array<Cell>;        // [entry]
@group(0) @binding(5) var<storage, read_write> v_out: array<Cell>;        // [entry]
@group(0) @binding(6) var<storage, read_write> last: array<u32>;          // [step's n] the last entry
@group(0) @binding(8) var<uniform> p: Params;

#import shared/selected

// Where cell `i` of a row is: rows lie in tiles of 8, their values and then their scales.
fn cell(row: u32, i: u32, values: u32, scales: u32) -> u32 {
    let tile = row / 8u * 8u * (values + scales);
    if i < values { return tile + row % 8u * values + i; }
    return tile + 8u * values + row % 8u * scales + i - values;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let end = listed_before(p.query, p.segment_first + p.segment_tokens);
    let begin = listed_before(p.query, p.segment_first);
    for (var entry = begin + group; entry < end; entry += p.groups) {
        let row = listed_position(p.query, entry) - p.segment_first;
        for (var i = lane; i < p.k_values + p.k_scales; i += WG) {
            let source = cell(row, i, p.k_values, p.k_scales);
            k_out[cell(entry, i, p.k_values, p.k_scales)] = keys[source];
        }
        for (var i = lane; i < p.v_values + p.v_scales; i += WG) {
            let source = cell(row, i, p.v_values, p.v_scales);
            v_out[cell(entry, i, p.v_values, p.v_scales)] = values[source];
        }
    }
    // The segment of the query's own position has the end of the list.
    if group == 0u && lane == 0u && positions[p.query] - p.segment_first < p.segment_tokens {
        last[p.query] = end - 1u;
    }
}
