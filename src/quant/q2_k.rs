//! Q2_K: 256 elements in 84 bytes, a 4-bit scale and minimum for each 16.
//! `y_i = d * (s & 15) * q_i - dmin * (s >> 4)`, `s` the byte of group `i div 16`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | scales: scale in the low, minimum in the high nibble |
//! | 16..80 | qs: 2-bit q; each 32 bytes hold 128 elements, 32 for each bit pair |
//! | 80..82 | d, f16 |
//! | 82..84 | dmin, f16 |

use super::{Planes, blocks::f16_at};

pub(super) const SCALES: usize = 0;
pub(super) const QS: usize = 16;
pub(super) const D: usize = 80;
pub(super) const DMIN: usize = 82;

/// Scales and bits, then d and dmin.
pub(super) const PLANES: Planes = Planes::new("q2_k", 256, &[[SCALES, D], [D, D + 4]]);

pub(super) fn dequantise(block: &[u8; 84], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, D), f16_at(block, DMIN));
    for (i, y) in y.iter_mut().enumerate() {
        let s = block[SCALES + i / 16];
        let q = (block[QS + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
        *y = d * f32::from(s & 15) * f32::from(q) - dmin * f32::from(s >> 4);
    }
}
