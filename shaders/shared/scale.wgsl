// The f16 of `block` in a plane of one a block.
fn scale_of(plane: u32, block: u32) -> f32 {
    return unpack2x16float(word_of(plane, block >> 1u) >> (16u * (block & 1u))).x;
}
