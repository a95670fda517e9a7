//! Q4_0: 32 elements in 18 bytes. `y_i = d * (n_i - 8)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..18 | 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble},
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;

/// The nibbles, then the scales.
pub(super) const PLANES: Planes = Planes::new("q4_0", 32, &[[QS, QS + 16], [D, D + 2]]);

pub(super) fn dequantise(block: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(block, D);
    for (i, y) in y.iter_mut().enumerate() {
        *y = d * (f32::from(nibble(&block[QS..], i)) - 8.0);
    }
}
