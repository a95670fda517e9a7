// Types in blocks of 32 values (4 eights) with an f16 scale. Rows lie in tiles of 8: their quants,
// then their scales (`kv::KvType`). What lanes write is whole words: 64 values of a head, at
// least, have scales of their own.
//   WORDS_TYPE        words of an eight's quants
//   scale_TYPE(x)     a block's scale, if x is its value of the largest magnitude
//   pack_TYPE(e, d)   an eight's quants, if d is the scale before it is stored as f16

// The one of larger magnitude; a NaN is larger than any number.
fn larger(a: f32, b: f32) -> f32 {
    return select(a, b, (bitcast<u32>(b) & 0x7fffffffu) > (bitcast<u32>(a) & 0x7fffffffu));
}

fn extreme(e: Eight) -> f32 {
    let lo = larger(larger(e.lo.x, e.lo.y), larger(e.lo.z, e.lo.w));
    return larger(lo, larger(larger(e.hi.x, e.hi.y), larger(e.hi.z, e.hi.w)));
}

// Half `part` of two words.
fn half_of(words: vec2<u32>, part: u32) -> f32 {
    let pair = unpack2x16float(select(words.x, words.y, part >= 2u));
    return select(pair.x, pair.y, (part & 1u) == 1u);
}
