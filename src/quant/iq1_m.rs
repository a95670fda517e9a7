//! IQ1_M: 256 elements in 56 bytes, a scale for each 16.
//! `y_i = d * (2 * s + 1) * (G[index][i mod 8] + delta)`, an index for each 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | low bytes of 32 indices |
//! | 32..48 | a nibble an index: its 3 high bits, sign of delta |
//! | 48..56 | 4 u16: 4 times 3 bits s, 4 bits of the f16 d, the lowest first |

use super::{
    Planes,
    blocks::u16_at,
    grids::{IQ1, TERNARY, eight},
    iq1_s::{DELTA, TABLE},
};
use half::f16;

pub(super) const QS: usize = 0;
pub(super) const QH: usize = 32;
pub(super) const SCALES: usize = 48;

pub(super) const PLANES: Planes = Planes::new("iq1_m", 256, &[[QS, SCALES + 8]]).with_table(&TABLE);

pub(super) fn dequantise(block: &[u8; 56], y: &mut [f32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|k| u16_at(block, SCALES + 2 * k));
    let d = d(block).to_f32();
    for (e, y) in y.chunks_exact_mut(8).enumerate() {
        let h = (block[QH + e / 2] >> (4 * (e % 2))) & 15;
        let index = usize::from(block[QS + e]) | usize::from(h & 7) << 8;
        let s = (scales[e / 8] >> (3 * (e / 2 % 4))) & 7;
        let scale = d * f32::from(2 * s + 1);
        let delta = if h & 8 == 8 { -DELTA } else { DELTA };
        for (y, value) in y.iter_mut().zip(eight(IQ1[index], &TERNARY)) {
            *y = scale * (f32::from(value) + delta);
        }
    }
}

/// The scale of all scales.
pub(super) fn d(block: &[u8]) -> f16 {
    let high = |k: usize| u16::from(block[SCALES + 2 * k + 1] >> 4);
    f16::from_bits((0..4).fold(0, |bits, k| bits | high(k) << (4 * k)))
}

/// Stores d.
pub(super) fn set_d(block: &mut [u8], d: f16) {
    for k in 0..4 {
        let high = &mut block[SCALES + 2 * k + 1];
        *high = *high & 15 | ((d.to_bits() >> (4 * k)) as u8 & 15) << 4;
    }
}
