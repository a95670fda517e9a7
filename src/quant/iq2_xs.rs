//! IQ2_XS: 256 elements in 74 bytes, a scale for each 16.
//! `y_i = d * (0.5 + s) * 0.25 * G[index][i mod 8] * sign`, an index for each 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | 32 u16: index in the low 9 bits, 7 sign bits |
//! | 66..74 | s, 16 nibbles, the low one of a byte first |

use super::{
    Planes,
    blocks::{f16_at, u16_at},
    grids::{self, EIGHTS, IQ2_XS, eight, signed},
    tables::{eights, with_even_signs},
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;
pub(super) const SCALES: usize = 66;

/// All but d, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq2_xs", 256, &[[QS, SCALES + 8], [D, D + 2]]).with_table(&TABLE);

const TABLE: [u32; 1280] = with_even_signs(&eights::<512, 1024>(&IQ2_XS));

pub(super) fn dequantise(block: &[u8; 74], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (e, y) in y.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, QS + 2 * e);
        let s = (block[SCALES + e / 4] >> (4 * (e / 2 % 2))) & 15;
        let scale = d * (0.5 + f32::from(s)) * 0.25;
        let values = eight(IQ2_XS[usize::from(word & 511)], &EIGHTS);
        let signs = grids::even_signs(u32::from(word >> 9));
        for (j, y) in y.iter_mut().enumerate() {
            *y = scale * signed(values[j], signs, j);
        }
    }
}
