//! Q8_0: 32 elements in 34 bytes. `y_i = d * q_i`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | q, 32 signed bytes |

use super::{Planes, blocks::f16_at};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;

/// The bytes, then the scales.
pub(super) const PLANES: Planes = Planes::new("q8_0", 32, &[[QS, QS + 32], [D, D + 2]]);

pub(super) fn dequantise(block: &[u8; 34], y: &mut [f32; 32]) {
    let d = f16_at(block, D);
    for (y, &q) in y.iter_mut().zip(&block[QS..]) {
        *y = d * f32::from(q as i8);
    }
}
