//! Q5_0: 32 elements in 22 bytes. `y_i = d * (n_i + 16 * bit i of qh - 16)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..6 | qh, u32: fifth bit of each element |
//! | 6..22 | 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble, u32_at},
};

pub(super) const D: usize = 0;
pub(super) const QH: usize = 2;
pub(super) const QS: usize = 6;

/// The nibbles, the fifth bits, the scales.
pub(super) const PLANES: Planes =
    Planes::new("q5_0", 32, &[[QS, QS + 16], [QH, QH + 4], [D, D + 2]]);

pub(super) fn dequantise(block: &[u8; 22], y: &mut [f32; 32]) {
    let (d, qh) = (f16_at(block, D), u32_at(block, QH));
    for (i, y) in y.iter_mut().enumerate() {
        let q = nibble(&block[QS..], i) | (((qh >> i) & 1) << 4) as u8;
        *y = d * (f32::from(q) - 16.0);
    }
}
