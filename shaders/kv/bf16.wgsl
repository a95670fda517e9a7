#import kv/eight
#import kv/cells

alias Cell_bf16 = vec4<u32>;
alias Stored_bf16 = vec4<u32>;
alias Packed_bf16 = Packed;

fn places_bf16(row: u32, eights: u32, i: u32) -> vec3<u32> {
    return vec3(vec2(row * eights + i), 0u);
}

fn join_bf16(a: vec4<u32>, b: vec4<u32>, part: u32) -> Packed {
    return Packed(a, b);
}

fn unpack_bf16(w: Packed) -> Eight {
    let first = w.a << vec4(16u);
    let second = w.a & vec4(0xffff0000u);
    return Eight(
        bitcast<vec4<f32>>(vec4(first.x, second.x, first.y, second.y)),
        bitcast<vec4<f32>>(vec4(first.z, second.z, first.w, second.w)),
    );
}

// The upper halves of four f32, rounded to nearest, ties to even; NaN stays NaN.
fn halves_bf16(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let rounded = (bits + vec4(0x7fffu) + ((bits >> vec4(16u)) & vec4(1u))) >> vec4(16u);
    let nan = (bits & vec4(0x7fffffffu)) > vec4(0x7f800000u);
    return select(rounded, vec4(0x7fc0u), nan);
}

fn pack_bf16(e: Eight) -> Packed {
    let lo = halves_bf16(e.lo);
    let hi = halves_bf16(e.hi);
    let cell = vec4(lo.xz, hi.xz) | vec4(lo.yw, hi.yw) << vec4(16u);
    return Packed(cell, cell);
}
