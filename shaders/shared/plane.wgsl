// Fields of blocks that lie in planes of their own (`quant::Planes`), where a unit is a vec4: planes
// start at units.

// Word `i` of the plane that starts at `plane`.
fn word_of(plane: u32, i: u32) -> u32 {
    return w[plane + (i >> 2u)][i & 3u];
}

// Where the next plane starts, after one of `words` words.
fn next_plane(plane: u32, words: u32) -> u32 {
    return plane + ((words + 3u) >> 2u);
}
