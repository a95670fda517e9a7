//! Q5_1: 32 elements in 24 bytes. `y_i = d * (n_i + 16 * bit i of qh) + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | m, f16 |
//! | 4..8 | qh, u32: fifth bit of each element |
//! | 8..24 | 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble, u32_at},
};

pub(super) const D: usize = 0;
pub(super) const M: usize = 2;
pub(super) const QH: usize = 4;
pub(super) const QS: usize = 8;

/// The nibbles, then scale, minimum and fifth bits.
pub(super) const PLANES: Planes = Planes::new("q5_1", 32, &[[QS, QS + 16], [D, QS]]);

pub(super) fn dequantise(block: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m, qh) = (f16_at(block, D), f16_at(block, M), u32_at(block, QH));
    for (i, y) in y.iter_mut().enumerate() {
        let q = nibble(&block[QS..], i) | (((qh >> i) & 1) << 4) as u8;
        *y = d * f32::from(q) + m;
    }
}
