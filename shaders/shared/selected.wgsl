// The tokens that the queries of a step attend to: those of selected blocks and of the incomplete
// block at the end, a list for each query, ascending (spec/architectures.md 4.5.4). The kernel
// binds positions [n] and blocks [n][most], and has shift (log2 of the tokens a block) and most
// in p.

// Entries of the list of `query` at positions before `bound`, the first of a block.
fn listed_before(query: u32, bound: u32) -> u32 {
    let seen = positions[query] + 1u;
    let complete = seen >> p.shift;
    let selected = min(complete, p.most);
    let block = bound >> p.shift;
    if block > complete { return seen - ((complete - selected) << p.shift); }
    // Binary search among the blocks.
    var low = 0u;
    var high = selected;
    while low < high {
        let middle = (low + high) / 2u;
        if blocks[query * p.most + middle] < block { low = middle + 1u; } else { high = middle; }
    }
    return low << p.shift;
}

// Position that entry `entry` of the list names.
fn listed_position(query: u32, entry: u32) -> u32 {
    var block = (positions[query] + 1u) >> p.shift;
    let i = entry >> p.shift;
    if i < min(block, p.most) { block = blocks[query * p.most + i]; }
    return (block << p.shift) + (entry & ((1u << p.shift) - 1u));
}
