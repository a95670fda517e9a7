//! IQ3_S: 256 elements in 110 bytes, a scale for each 32.
//! `y_i = d * (1 + 2 * s) * G[index][i mod 4] * sign`, an index for each 4.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | low bytes of 64 indices |
//! | 66..74 | ninth bits of the indices |
//! | 74..106 | 8 sign bits for each 8 elements |
//! | 106..110 | s, 8 nibbles, the low one of a byte first |

use super::{
    Planes,
    blocks::f16_at,
    grids::{FOURS_S, IQ3_S, four, signed},
    tables::fours,
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;
pub(super) const QH: usize = 66;
pub(super) const SIGNS: usize = 74;
pub(super) const SCALES: usize = 106;

/// All but d, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq3_s", 256, &[[QS, SCALES + 4], [D, D + 2]]).with_table(&TABLE);

const TABLE: [u32; 512] = fours(&IQ3_S, &FOURS_S);

pub(super) fn dequantise(block: &[u8; 110], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (e, y) in y.chunks_exact_mut(4).enumerate() {
        let high = (block[QH + e / 8] >> (e % 8)) & 1;
        let index = usize::from(block[QS + e]) | usize::from(high) << 8;
        let s = (block[SCALES + e / 16] >> (4 * (e / 8 % 2))) & 15;
        let scale = d * f32::from(1 + 2 * s);
        let values = four(IQ3_S[index], &FOURS_S);
        for (j, y) in y.iter_mut().enumerate() {
            *y = scale * signed(values[j], block[SIGNS + e / 2], 4 * (e % 2) + j);
        }
    }
}
