// Weights of nibbles that stand for other values. The part begins with a table: word n + 16 n' holds
// the values of n and n' as bytes, plus a number that makes all positive, twice.

#import shared/bytes
#import shared/words

// Where the planes start.
const PLANES: u32 = 256u;

// The values of sixteen nibbles, one a byte.
fn valued(n: vec4<u32>) -> vec4<u32> {
    // Two nibbles of a word in its lowest byte, two in the third.
    let i = n | (n >> vec4(4u));
    return vec4(four(i.x), four(i.y), four(i.z), four(i.w));
}

fn four(i: u32) -> u32 {
    return (w[i & 0xffu] & 0xffffu) | (w[(i >> 16u) & 0xffu] & 0xffff0000u);
}
