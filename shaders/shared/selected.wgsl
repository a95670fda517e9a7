// Attention over the tokens of selected blocks and the incomplete block at the end
// (spec/architectures.md 4.5.4): a query's list of tokens, ascending by position, and the part of
// it that lies in the segment. For kernels with one query a workgroup.

// Entries of the list of query `token` at positions before `bound`, a multiple of the ratio.
fn listed_before(token: u32, bound: u32) -> u32 {
    let seen = positions[p.first + token] + 1u;
    let complete = seen / p.ratio;
    let selected = min(complete, p.most);
    let block = bound / p.ratio;
    if block > complete { return selected * p.ratio + seen % p.ratio; }
    // Binary search among the blocks.
    let list = (p.first + token) * p.most;
    var low = 0u;
    var high = selected;
    while low < high {
        let middle = (low + high) / 2u;
        if blocks[list + middle] < block { low = middle + 1u; } else { high = middle; }
    }
    return low * p.ratio;
}

// Keys of the segment in the list of query `token`.
fn visible(token: u32) -> u32 {
    let end = listed_before(token, p.segment_first + p.segment_tokens);
    return end - listed_before(token, p.segment_first);
}

// Where entry `key` of those in the segment is in it.
fn key_row(at: Place, key: u32) -> u32 {
    let entry = at.listed + key;
    let seen = positions[p.first + at.token] + 1u;
    let complete = seen / p.ratio;
    let selected = min(complete, p.most);
    let i = entry / p.ratio;
    var block = complete;
    if i < selected { block = blocks[(p.first + at.token) * p.most + i]; }
    return block * p.ratio + entry % p.ratio - p.segment_first;
}

// The row may see every key of its workgroup's split; none if it does not exist.
fn row_visible(at: Place, row: u32) -> u32 {
    return select(0u, at.end, row_exists(at, row));
}
