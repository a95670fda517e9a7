//! IQ4_NL: 32 elements in 18 bytes. `y_i = d * VALUES[n_i]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..18 | 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble},
    tables::pairs,
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;

/// What the sixteen nibbles stand for, also in IQ4_XS.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The nibbles, then the scales.
pub(super) const PLANES: Planes =
    Planes::new("iq4_nl", 32, &[[QS, QS + 16], [D, D + 2]]).with_table(&TABLE);

/// Also of IQ4_XS.
pub(super) const TABLE: [u32; 256] = pairs(&VALUES, 128);

pub(super) fn dequantise(block: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(block, D);
    for (i, y) in y.iter_mut().enumerate() {
        *y = d * f32::from(VALUES[usize::from(nibble(&block[QS..], i))]);
    }
}
