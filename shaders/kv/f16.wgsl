#import kv/eight

fn words_f16(i: u32) -> vec2<u32> {
    return vec2(i, i);
}

fn unpack_f16(w: Packed) -> Eight {
    return Eight(
        vec4(unpack2x16float(w.a.x), unpack2x16float(w.a.y)),
        vec4(unpack2x16float(w.a.z), unpack2x16float(w.a.w)),
    );
}

// Clamped, since the conversion of a value past the range of f16 is not defined.
fn pack_f16(e: Eight) -> Packed {
    let lo = clamp(e.lo, vec4(-65504.0), vec4(65504.0));
    let hi = clamp(e.hi, vec4(-65504.0), vec4(65504.0));
    let word = vec4(
        pack2x16float(lo.xy), pack2x16float(lo.zw), pack2x16float(hi.xy), pack2x16float(hi.zw),
    );
    return Packed(word, word);
}
