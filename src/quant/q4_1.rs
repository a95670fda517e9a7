//! Q4_1: 32 elements in 20 bytes. `y_i = d * n_i + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | m, f16 |
//! | 4..20 | 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble},
};

pub(super) const D: usize = 0;
pub(super) const M: usize = 2;
pub(super) const QS: usize = 4;

/// The nibbles, then scale and minimum.
pub(super) const PLANES: Planes = Planes::new("q4_1", 32, &[[QS, QS + 16], [D, QS]]);

pub(super) fn dequantise(block: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, D), f16_at(block, M));
    for (i, y) in y.iter_mut().enumerate() {
        *y = d * f32::from(nibble(&block[QS..], i)) + m;
    }
}
