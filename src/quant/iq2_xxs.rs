//! IQ2_XXS: 256 elements in 66 bytes, in groups of 32.
//! `y_i = d * (0.5 + s) * 0.25 * G[index][i mod 8] * sign`, an index for each 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..66 | a group in 8 bytes: 4 indices, then a u32 of 4 times 7 sign bits and 4 bits s |

use super::{
    Planes,
    blocks::{f16_at, u32_at},
    grids::{self, EIGHTS, IQ2_XXS, eight, signed},
    tables::{eights, with_even_signs},
};

pub(super) const D: usize = 0;
pub(super) const QS: usize = 2;

/// Indices, signs and scales, then d.
pub(super) const PLANES: Planes =
    Planes::new("iq2_xxs", 256, &[[QS, QS + 64], [D, D + 2]]).with_table(&TABLE);

const TABLE: [u32; 768] = with_even_signs(&eights::<256, 512>(&IQ2_XXS));

pub(super) fn dequantise(block: &[u8; 66], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let word = u32_at(block, QS + 8 * g + 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (l, y) in y.chunks_exact_mut(8).enumerate() {
            let values = eight(IQ2_XXS[usize::from(block[QS + 8 * g + l])], &EIGHTS);
            let signs = grids::even_signs(word >> (7 * l));
            for (j, y) in y.iter_mut().enumerate() {
                *y = scale * signed(values[j], signs, j);
            }
        }
    }
}
