//! IQ4_XS: 256 elements in 136 bytes, a 6-bit scale for each 32.
//! `y_i = d * (ls - 32) * VALUES[n_i]` with IQ4_NL's table.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | scales_h, u16: high bit pair of each ls |
//! | 4..8 | scales_l: low nibble of each ls, two a byte |
//! | 8..136 | qs: each 16 bytes hold 32 nibbles n, halves |

use super::{
    Planes,
    blocks::{f16_at, nibble},
    iq4_nl::{TABLE, VALUES},
};

pub(super) const D: usize = 0;
pub(super) const SCALES_H: usize = 2;
pub(super) const SCALES_L: usize = 4;
pub(super) const QS: usize = 8;

/// The nibbles, then d and the scales.
pub(super) const PLANES: Planes =
    Planes::new("iq4_xs", 256, &[[QS, QS + 128], [D, QS]]).with_table(&TABLE);

pub(super) fn dequantise(block: &[u8; 136], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let scale = d * f32::from(scale(block, g));
        let qs = &block[QS + 16 * g..];
        for (i, y) in y.iter_mut().enumerate() {
            *y = scale * f32::from(VALUES[usize::from(nibble(qs, i))]);
        }
    }
}

/// The scale of group `g` (0..8), -32..=31.
pub(super) fn scale(block: &[u8; 136], g: usize) -> i8 {
    let low = (block[SCALES_L + g / 2] >> (4 * (g % 2))) & 15;
    let high = (block[SCALES_H + g / 4] >> (2 * (g % 4))) & 3;
    (low | (high << 4)) as i8 - 32
}
