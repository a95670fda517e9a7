// NVFP4: 64 weights factor * scale / 2 * value(n), a scale for each 16 (spec/gguf.md 3.1). Planes: 8
// words a block, two a scale: n in low nibbles, then in high ones; 4 bytes of scales; the factor of
// the matrix, f32.

#import shared/pairs

alias Unit = u32;

const BLOCK: u32 = 64u;
const WIDE: bool = false;

fn run_start(run: u32) -> u32 {
    return 16u * run;
}

fn load_bytes(block: u32, run: u32) -> Bytes {
    let both = four_words(PLANES + 8u * block + 4u * (run >> 1u));
    let q = select(both.xy, both.zw, (run & 1u) == 1u);
    let n = vec4(q, q >> vec2(4u)) & vec4(0x0f0f0f0fu);
    let scales = PLANES + 8u * p.part.blocks;
    let factor = bitcast<f32>(word_of(next_plane(scales, p.part.blocks), block));
    let d = factor * half_scale((word_of(scales, block) >> (8u * run)) & 0x7fu);
    return Bytes(valued(n), d, -12.0 * d);
}

// Half of a float of 4 bits exponent and 3 bits mantissa; 0 if all are set.
fn half_scale(bits: u32) -> f32 {
    let normal = bitcast<f32>((bits << 20u) + (119u << 23u));
    let scale = select(normal, f32(bits) / 1024.0, bits < 8u);
    return select(scale, 0.0, bits == 127u);
}
