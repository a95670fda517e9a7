// d * sc and dmin * m of a group (0..8) of 32 weights (Q4_K and Q5_K, spec/gguf.md 3.2): `head` is d
// and dmin, then 8 pairs (sc, m) of 6 bits, each spread over bytes group % 4 of three words.
fn scale_min(head: vec4<u32>, group: u32) -> vec2<f32> {
    let s = (head.yzw >> vec3(8u * (group & 3u))) & vec3(0xffu);
    let first = vec2(s.x & 63u, s.y & 63u);
    let second = vec2((s.z & 15u) | ((s.x >> 6u) << 4u), (s.z >> 4u) | ((s.y >> 6u) << 4u));
    return unpack2x16float(head.x) * vec2<f32>(select(first, second, group >= 4u));
}
