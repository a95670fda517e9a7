// Magnitudes and signs, apart in the IQ2 and IQ3 formats. Bytes v are 128 plus a magnitude and become
// 128 minus it where it is negative: ~(128 + m) + 1 in 8 bits, and no byte carries into the next.

#import shared/bytes

// The low 16 bits of `signs` say which.
fn signed(v: vec4<u32>, signs: u32) -> vec4<u32> {
    let s = spread(signs);
    // All bits of a byte where its lowest is set.
    return (v ^ ((s << vec4(8u)) - s)) + s;
}

// Twice 7 bits say which, and an eighth that makes the number of negative ones even: words 2 i and
// 2 i + 1 of the table at `at` are 0xff in the bytes that 7 bits i mean.
fn even_signed(at: u32, v: vec4<u32>, first: u32, second: u32) -> vec4<u32> {
    let a = at + 2u * (first & 127u);
    let b = at + 2u * (second & 127u);
    let mask = vec4(w[a], w[a + 1u], w[b], w[b + 1u]);
    return (v ^ mask) + (mask & vec4(0x01010101u));
}
