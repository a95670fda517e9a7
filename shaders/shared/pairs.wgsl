// Weights of nibbles that stand for other values. The part begins with a table: word n + 16 n' holds
// the values of n and n', f16.

#import shared/words

// Where the planes start.
const PLANES: u32 = 256u;

// d times the values of sixteen nibbles, one a byte.
fn valued(n: vec4<u32>, d: f32) -> mat4x4<f32> {
    // Two nibbles of a word in its lowest byte, two in the third.
    let i = n | (n >> vec4(4u));
    return d * mat4x4<f32>(four(i.x), four(i.y), four(i.z), four(i.w));
}

fn four(i: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(w[i & 0xffu]), unpack2x16float(w[(i >> 16u) & 0xffu]));
}
