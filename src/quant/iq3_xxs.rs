//! IQ3_XXS: 256 elements in 98 bytes, in groups of 32.
//! `y_i = d * (0.5 + s) * 0.5 * G[index][i mod 4] * sign`, an index for each 4.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | 64 indices |
//! | 66..98 | a u32 a group: 4 times 7 sign bits, 4 bits s |

use super::{
    Planes,
    blocks::{f16_at, u32_at},
    grids::{self, FOURS_XXS, IQ3_XXS, four, signed},
    tables::{fours, with_even_signs},
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;
pub(super) const AUX: usize = 66;

/// All but d, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq3_xxs", 256, &[[QS, AUX + 32], [D, D + 2]]).with_table(&TABLE);

const TABLE: [u32; 512] = with_even_signs(&fours(&IQ3_XXS, &FOURS_XXS));

pub(super) fn dequantise(block: &[u8; 98], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (e, y) in y.chunks_exact_mut(4).enumerate() {
        let word = u32_at(block, AUX + 4 * (e / 8));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let values = four(IQ3_XXS[usize::from(block[QS + e])], &FOURS_XXS);
        let signs = grids::even_signs(word >> (7 * (e / 2 % 4)));
        for (j, y) in y.iter_mut().enumerate() {
            *y = scale * signed(values[j], signs, 4 * (e % 2) + j);
        }
    }
}
