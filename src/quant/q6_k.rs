//! Q6_K: 256 elements in 210 bytes, a signed byte scale for each 16.
//! `y_i = d * sc * (q_i - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | ql: low nibbles of q; each 64 bytes hold 128 elements |
//! | 128..192 | qh: high bit pairs of q; each 32 bytes hold 128 elements, 32 for each pair |
//! | 192..208 | scales, 16 signed bytes |
//! | 208..210 | d, f16 |

use super::{Planes, blocks::f16_at};

pub(super) const QL: usize = 0;
pub(super) const QH: usize = 128;
pub(super) const SCALES: usize = 192;
pub(super) const D: usize = 208;

/// Bits and byte scales, then d.
pub(super) const PLANES: Planes = Planes::new("q6_k", 256, &[[QL, D], [D, D + 2]]);

pub(super) fn dequantise(block: &[u8; 210], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (i, y) in y.iter_mut().enumerate() {
        let (n, p, l) = (i / 128, i % 128 / 32, i % 32);
        let low = (block[QL + 64 * n + 32 * (p % 2) + l] >> (4 * (p / 2))) & 15;
        let high = (block[QH + 32 * n + l] >> (2 * p)) & 3;
        let q = (low | (high << 4)) as i8 - 32;
        *y = d * f32::from(block[SCALES + i / 16] as i8) * f32::from(q);
    }
}
