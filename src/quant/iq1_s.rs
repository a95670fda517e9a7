//! IQ1_S: 256 elements in 50 bytes, in groups of 32.
//! `y_i = d * (2 * s + 1) * (G[index][i mod 8] + delta)`, an index for each 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | low bytes of 32 indices |
//! | 34..50 | a u16 a group: 4 times 3 high bits of an index, 3 bits s, sign of delta |

use super::{
    Planes,
    blocks::{f16_at, u16_at},
    grids::{IQ1, TERNARY, eight},
    tables::nibbles,
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;
pub(super) const QH: usize = 34;

/// What is added to all numbers of an entry, or taken off.
pub(super) const DELTA: f32 = 0.125;

/// All but d, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq1_s", 256, &[[QS, QH + 16], [D, D + 2]]).with_table(&TABLE);

/// Also of IQ1_M.
pub(super) const TABLE: [u32; 2048] = nibbles(&IQ1);

pub(super) fn dequantise(block: &[u8; 50], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (e, y) in y.chunks_exact_mut(8).enumerate() {
        let h = u16_at(block, QH + 2 * (e / 4));
        let index = usize::from(block[QS + e]) | usize::from((h >> (3 * (e % 4))) & 7) << 8;
        let scale = d * f32::from(2 * ((h >> 12) & 7) + 1);
        let delta = if h >> 15 == 1 { -DELTA } else { DELTA };
        for (y, value) in y.iter_mut().zip(eight(IQ1[index], &TERNARY)) {
            *y = scale * (f32::from(value) + delta);
        }
    }
}
