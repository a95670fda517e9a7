// Attention over the tokens of selected blocks and the incomplete block at the end
// (spec/architectures.md 4.5.4): a query's list of tokens, ascending by position, and the part of
// it that lies in the segment. For kernels with one query a workgroup.

// Entries of the list of query `token` at positions before `bound`, the first of a block.
fn listed_before(token: u32, bound: u32) -> u32 {
    let seen = positions[p.first + token] + 1u;
    let complete = seen >> p.shift;
    let selected = min(complete, p.most);
    let block = bound >> p.shift;
    if block > complete { return seen - ((complete - selected) << p.shift); }
    // Binary search among the blocks.
    let list = (p.first + token) * p.most;
    var low = 0u;
    var high = selected;
    while low < high {
        let middle = (low + high) / 2u;
        if blocks[list + middle] < block { low = middle + 1u; } else { high = middle; }
    }
    return low << p.shift;
}

// Keys of the segment in the list of query `token`.
fn visible(token: u32) -> u32 {
    let end = listed_before(token, p.segment_first + p.segment_tokens);
    return end - listed_before(token, p.segment_first);
}

// Row of the segment that entry `key` of those in it names.
fn key_row(at: Place, key: u32) -> u32 {
    let entry = at.listed + key;
    let query = p.first + at.token;
    var block = (positions[query] + 1u) >> p.shift;
    let i = entry >> p.shift;
    if i < min(block, p.most) { block = blocks[query * p.most + i]; }
    return (block << p.shift) + (entry & ((1u << p.shift) - 1u)) - p.segment_first;
}

// The row of queries may see every key of its workgroup's split; none if it does not exist.
fn row_visible(at: Place, row: u32) -> u32 {
    return select(0u, at.end, row_exists(at, row));
}
