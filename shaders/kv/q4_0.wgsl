// d * (n - 8): nibbles n, the lowest first, and d = value of the largest magnitude / -8.
#import kv/eight
#import kv/block

alias Cell_q4_0 = u32;
alias Stored_q4_0 = u32;

struct Packed_q4_0 { n: u32, d: f32 }

const UNIT_q4_0: f32 = 16.0;

fn places_q4_0(row: u32, eights: u32, i: u32) -> vec3<u32> {
    let tile = row / 8u * (8u * eights + eights);
    let scale = row % 8u * (eights / 4u) + i / 4u;
    return vec3(tile + row % 8u * eights + i, tile + 8u * eights + scale / 2u, scale % 2u);
}

fn join_q4_0(n: u32, scales: u32, part: u32) -> Packed_q4_0 {
    return Packed_q4_0(n, half_of(vec2(scales), part));
}

fn unpack_q4_0(w: Packed_q4_0) -> Eight {
    // Each byte's lower nibbles, then the upper ones.
    let even = vec4<f32>(unpack4xU8(w.n & 0x0f0f0f0fu));
    let odd = vec4<f32>(unpack4xU8((w.n >> 4u) & 0x0f0f0f0fu));
    return Eight(
        w.d * vec4(even.x, odd.x, even.y, odd.y) - 8.0 * w.d,
        w.d * vec4(even.z, odd.z, even.w, odd.w) - 8.0 * w.d,
    );
}

const WORDS_q4_0: u32 = 1u;

fn scale_q4_0(x: f32) -> f32 {
    return x / -8.0;
}

fn pack_q4_0(e: Eight, d: f32) -> vec2<u32> {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    let lo = vec4<u32>(clamp(floor(e.lo * inverse + 8.5), vec4(0.0), vec4(15.0)));
    let hi = vec4<u32>(clamp(floor(e.hi * inverse + 8.5), vec4(0.0), vec4(15.0)));
    let shifts = vec4(0u, 4u, 8u, 12u);
    let parts = (lo << shifts) | (hi << (shifts + 16u));
    return vec2(parts.x | parts.y | parts.z | parts.w, 0u);
}
