// The f16 of `block` in a plane of one a block that starts at `plane`, in vec4s.
fn scale_of(plane: u32, block: u32) -> f32 {
    let pair = unpack2x16float(w[plane + (block >> 3u)][(block >> 1u) & 3u]);
    return select(pair.x, pair.y, (block & 1u) == 1u);
}
