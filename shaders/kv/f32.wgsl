#import kv/eight
#import kv/cells

alias Cell_f32 = vec4<u32>;
alias Stored_f32 = vec4<u32>;
alias Packed_f32 = Packed;

fn places_f32(row: u32, eights: u32, i: u32) -> vec3<u32> {
    let cell = 2u * (row * eights + i);
    return vec3(cell, cell + 1u, 0u);
}

fn join_f32(a: vec4<u32>, b: vec4<u32>, part: u32) -> Packed {
    return Packed(a, b);
}

fn unpack_f32(w: Packed) -> Eight {
    return Eight(bitcast<vec4<f32>>(w.a), bitcast<vec4<f32>>(w.b));
}

fn pack_f32(e: Eight) -> Packed {
    return Packed(bitcast<vec4<u32>>(e.lo), bitcast<vec4<u32>>(e.hi));
}
