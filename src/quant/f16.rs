//! F16: IEEE half precision, one element a block.

pub(super) fn dequantise(block: &[u8; 2], y: &mut [f32; 1]) {
    y[0] = half::f16::from_le_bytes(*block).to_f32();
}
