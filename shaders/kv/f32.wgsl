#import kv/eight

fn words_f32(i: u32) -> vec2<u32> {
    return vec2(2u * i, 2u * i + 1u);
}

fn unpack_f32(w: Packed) -> Eight {
    return Eight(bitcast<vec4<f32>>(w.a), bitcast<vec4<f32>>(w.b));
}

fn pack_f32(e: Eight) -> Packed {
    return Packed(bitcast<vec4<u32>>(e.lo), bitcast<vec4<u32>>(e.hi));
}
