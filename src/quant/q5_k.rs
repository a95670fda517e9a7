//! Q5_K: 256 elements in 176 bytes, a 6-bit scale and minimum for each 32.
//! `y_i = d * sc * q_i - dmin * m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d, f16 |
//! | 2..4 | dmin, f16 |
//! | 4..16 | scales: 8 pairs (sc, m) of 6 bits |
//! | 16..48 | qh: bit `i div 32` of byte `i mod 32` is the fifth bit of q |
//! | 48..176 | qs: each 32 bytes hold 64 elements, the first 32 in the low nibbles |

use super::{
    Planes,
    blocks::{f16_at, scale_min},
};

pub(super) const D: usize = 0;
pub(super) const DMIN: usize = 2;
pub(super) const SCALES: usize = 4;
pub(super) const QH: usize = 16;
pub(super) const QS: usize = 48;

pub(super) const PLANES: Planes = Planes::new("q5_k", 256, &[[0, 176]]);

pub(super) fn dequantise(block: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, D), f16_at(block, DMIN));
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let (sc, m) = scale_min(&block[SCALES..QH], g);
        let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
        for (l, y) in y.iter_mut().enumerate() {
            let low = (block[QS + 32 * (g / 2) + l] >> (4 * (g % 2))) & 15;
            let high = (block[QH + l] >> g) & 1;
            *y = scale * f32::from(low | (high << 4)) - min;
        }
    }
}
