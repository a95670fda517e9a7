// Which products a workgroup makes: a tile of up to TN rows of W times up to TM rows of x.
//
// With `experts` these are pairs (token, slot) of one expert, from the lists of `expert_lists.wgsl`: W
// is the expert's part of a stack, x row x_first + pair / share, y row pair.

#if experts
@group(0) @binding(3) var<storage, read> pairs: array<u32>;        // [n] sorted by expert
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;  // expert, first in pairs, count
#endif

struct Tile {
    top: u32,    // row of W that column 0 of y is of
    start: u32,  // first row of W
    low: u32,    // those that exist and lie in this part: from low to before high, maybe none
    high: u32,
    first: u32,  // first row of x and y, or pair
    count: u32,
}

fn tile_of(workgroup: u32) -> Tile {
#if experts
    // Entry 0 holds the number of tiles, the grid is for the most there can be.
    let number = workgroup / p.row_tiles;
    if number >= tiles[0].x { return Tile(); }
    let entry = tiles[number + 1u];
    let top = entry.x * p.n_out;
    let start = top + workgroup % p.row_tiles * TN;
    let first = entry.y;
    let count = entry.z;
#else
    // Workgroups next to each other share rows of W.
    let across = (p.n + TM - 1u) / TM;
    let top = 0u;
    let start = p.part.first_row + workgroup / across * TN;
    let first = workgroup % across * TM;
    let count = min(p.n - first, TM);
#endif
    let low = max(start, p.part.first_row);
    let high = min(min(start + TN, top + p.n_out), p.part.first_row + p.part.rows);
    return Tile(top, start, low, high, first, count);
}

// Which rows of x and y belong to a row of the tile.
#if experts
fn x_row(i: u32) -> u32 {
    return p.x_first + pairs[i] / p.share;
}

fn y_row(i: u32) -> u32 {
    return pairs[i];
}
#else
fn x_row(i: u32) -> u32 {
    return i;
}

fn y_row(i: u32) -> u32 {
    return i;
}
#endif
