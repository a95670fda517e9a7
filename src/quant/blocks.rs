//! What the formats share: walking blocks, reading f16 fields, nibbles and 6-bit scales.

use half::f16;

/// Calls `dequantise` for each block; sizes come from its argument types. Incomplete blocks are
/// left alone: `super::dequantise` has checked the lengths.
pub(super) fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    dequantise: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (values, _) = out.as_chunks_mut::<ELEMENTS>();
    for (block, y) in blocks.iter().zip(values) {
        dequantise(block, y);
    }
}

/// The f16 at byte `at` of a block, as f32.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The little-endian u16 at byte `at` of a block.
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The little-endian u32 at byte `at` of a block.
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Element `i` of 32 nibbles stored as halves: byte `i mod 16`, low nibble for the first 16.
pub(super) fn nibble(qs: &[u8], i: usize) -> u8 {
    (qs[i % 16] >> (4 * (i / 16))) & 15
}

/// The 6-bit scale and minimum of group `g` (0..8), packed in 12 bytes (Q4_K and Q5_K).
pub(super) fn scale_min(scales: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (scales[g] & 63, scales[g + 4] & 63)
    } else {
        (
            (scales[g + 4] & 15) | ((scales[g - 4] >> 6) << 4),
            (scales[g + 4] >> 4) | ((scales[g] >> 6) << 4),
        )
    }
}
