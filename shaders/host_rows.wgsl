// counts[c] += tokens of one range of positions that the queries of a step attend to, one workgroup
// for all queries: of what was selected only the device knows where it lies.
// spec/kv-offload.md 6. Reads a few blocks of each query's list.

const WG: u32 = 64u;

struct Params {
    query: u32,    // the first
    end: u32,      // one past the last
    shift: u32,    // log2 of the tokens a block
    most: u32,     // blocks a query selects
    first: u32,    // the range, whole blocks
    tokens: u32,
    counter: u32,
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;     // [step's n]
@group(0) @binding(1) var<storage, read> blocks: array<u32>;        // [step's n][most] ascending
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;  // [counter][2], low word first
@group(0) @binding(8) var<uniform> p: Params;

#import shared/selected

var<workgroup> sum: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    if lane == 0u { atomicStore(&sum, 0u); }
    workgroupBarrier();
    var rows = 0u;
    for (var query = p.query + lane; query < p.end; query += WG) {
        rows += listed_before(query, p.first + p.tokens) - listed_before(query, p.first);
    }
    atomicAdd(&sum, rows);
    workgroupBarrier();
    if lane == 0u {
        let low = counts[2u * p.counter] + atomicLoad(&sum);
        if low < counts[2u * p.counter] { counts[2u * p.counter + 1u] += 1u; }
        counts[2u * p.counter] = low;
    }
}
