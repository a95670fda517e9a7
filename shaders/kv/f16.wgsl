#import kv/eight
#import kv/cells

alias Cell_f16 = vec4<u32>;
alias Stored_f16 = vec4<u32>;
alias Packed_f16 = Packed;

const UNIT_f16: f32 = 1.0;

fn places_f16(row: u32, eights: u32, i: u32) -> vec3<u32> {
    return vec3(vec2(row * eights + i), 0u);
}

fn join_f16(a: vec4<u32>, b: vec4<u32>, part: u32) -> Packed {
    return Packed(a, b);
}

fn unpack_f16(w: Packed) -> Eight {
    return Eight(
        vec4(unpack2x16float(w.a.x), unpack2x16float(w.a.y)),
        vec4(unpack2x16float(w.a.z), unpack2x16float(w.a.w)),
    );
}

fn pack_f16(e: Eight) -> Packed {
    let lo = within_f16(e.lo);
    let hi = within_f16(e.hi);
    let cell = vec4(
        pack2x16float(lo.xy), pack2x16float(lo.zw), pack2x16float(hi.xy), pack2x16float(hi.zw),
    );
    return Packed(cell, cell);
}
