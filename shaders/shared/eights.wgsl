// Weights by eights from the table that begins the part.

// Entries of bytes: words 2 i and 2 i + 1 hold entry i.
fn eights(first: u32, second: u32) -> vec4<u32> {
    return vec4(w[2u * first], w[2u * first + 1u], w[2u * second], w[2u * second + 1u]);
}

// Entries of nibbles: word i holds entry i, 0 to 3 in the low nibbles of bytes, 4 to 7 in the high ones.
fn small_eights(first: u32, second: u32) -> vec4<u32> {
    let a = w[first];
    let b = w[second];
    return vec4(a, a >> 4u, b, b >> 4u) & vec4(0x0f0f0f0fu);
}
