// The same where a unit is a word: for formats with a table, so that looking up takes little
// addressing. Planes start at multiples of four.

fn word_of(plane: u32, i: u32) -> u32 {
    return w[plane + i];
}

fn next_plane(plane: u32, words: u32) -> u32 {
    return plane + ((words + 3u) & ~3u);
}

// Words `i` to `i + 3`; for i a multiple of 4 compilers load them at once.
fn four_words(i: u32) -> vec4<u32> {
    return vec4(w[i], w[i + 1u], w[i + 2u], w[i + 3u]);
}
