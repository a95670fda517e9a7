// d * (q - 128): bytes q, and d = largest magnitude / 127.
#import kv/eight
#import kv/block

alias Cell_q8_0 = vec2<u32>;
alias Stored_q8_0 = u32;

struct Packed_q8_0 { q: vec2<u32>, d: f32 }

const UNIT_q8_0: f32 = 256.0;

fn places_q8_0(row: u32, eights: u32, i: u32) -> vec3<u32> {
    let tile = row / 8u * (8u * eights + eights / 2u);
    let scale = row % 8u * (eights / 4u) + i / 4u;
    return vec3(tile + row % 8u * eights + i, tile + 8u * eights + scale / 4u, scale % 4u);
}

fn join_q8_0(q: vec2<u32>, scales: vec2<u32>, part: u32) -> Packed_q8_0 {
    return Packed_q8_0(q, half_of(scales, part));
}

fn unpack_q8_0(w: Packed_q8_0) -> Eight {
    return Eight(
        w.d * vec4<f32>(unpack4xU8(w.q.x)) - 128.0 * w.d,
        w.d * vec4<f32>(unpack4xU8(w.q.y)) - 128.0 * w.d,
    );
}

const WORDS_q8_0: u32 = 2u;

fn scale_q8_0(x: f32) -> f32 {
    return abs(x) / 127.0;
}

fn pack_q8_0(e: Eight, d: f32) -> vec2<u32> {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    let lo = clamp(round(e.lo * inverse), vec4(-127.0), vec4(127.0));
    let hi = clamp(round(e.hi * inverse), vec4(-127.0), vec4(127.0));
    return vec2(pack4xU8(vec4<u32>(lo + 128.0)), pack4xU8(vec4<u32>(hi + 128.0)));
}
