//! IQ2_S: 256 elements in 82 bytes, a scale for each 16.
//! `y_i = d * (0.5 + s) * 0.25 * G[index][i mod 8] * sign`, an index for each 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..34 | low bytes of 32 indices |
//! | 34..66 | 8 sign bits for each index |
//! | 66..74 | high bit pairs of the indices, four a byte |
//! | 74..82 | s, 16 nibbles, the low one of a byte first |

use super::{
    Planes,
    blocks::f16_at,
    grids::{EIGHTS, IQ2_S, eight, signed},
    tables::eights,
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;
pub(super) const SIGNS: usize = 34;
pub(super) const QH: usize = 66;
pub(super) const SCALES: usize = 74;

/// All but d, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq2_s", 256, &[[QS, SCALES + 8], [D, D + 2]]).with_table(&TABLE);

const TABLE: [u32; 2048] = eights(&IQ2_S);

pub(super) fn dequantise(block: &[u8; 82], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (e, y) in y.chunks_exact_mut(8).enumerate() {
        let high = (block[QH + e / 4] >> (2 * (e % 4))) & 3;
        let index = usize::from(block[QS + e]) | usize::from(high) << 8;
        let s = (block[SCALES + e / 4] >> (4 * (e / 2 % 2))) & 15;
        let scale = d * (0.5 + f32::from(s)) * 0.25;
        let values = eight(IQ2_S[index], &EIGHTS);
        for (j, y) in y.iter_mut().enumerate() {
            *y = scale * signed(values[j], block[SIGNS + e], j);
        }
    }
}
