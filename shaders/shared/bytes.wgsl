// Sixteen weights from bytes: scale * q + offset for the bytes q, in order. Where a format is WIDE they
// may have their highest bit set.
struct Bytes {
    q: vec4<u32>,
    scale: f32,
    offset: f32,
}

// With `fma`, as compilers otherwise make two operations of it where the offset is a multiple of the
// scale: scale * (q + offset / scale).
fn load_run(block: u32, run: u32) -> mat4x4<f32> {
    let b = load_bytes(block, run);
    return mat4x4<f32>(
        fma(vec4(b.scale), vec4<f32>(unpack4xU8(b.q.x)), vec4(b.offset)),
        fma(vec4(b.scale), vec4<f32>(unpack4xU8(b.q.y)), vec4(b.offset)),
        fma(vec4(b.scale), vec4<f32>(unpack4xU8(b.q.z)), vec4(b.offset)),
        fma(vec4(b.scale), vec4<f32>(unpack4xU8(b.q.w)), vec4(b.offset)),
    );
}

// Bytes of 0 or 1 from the low 16 bits.
fn spread(bits: u32) -> vec4<u32> {
    // The product copies four bits to where each is the lowest of a byte.
    return (((vec4(bits) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u)) * 0x204081u) & vec4(0x01010101u);
}
