//! F16: IEEE half precision, one element a block.

use super::Planes;

pub(super) const PLANES: Planes = Planes::new("f16", 32, &[[0, 64]]);

pub(super) fn dequantise(block: &[u8; 2], y: &mut [f32; 1]) {
    y[0] = half::f16::from_le_bytes(*block).to_f32();
}
