//! Q3_K: 256 elements in 110 bytes, a signed 6-bit scale for each 16. `y_i = d * s * q_i`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | hmask: bit `i div 32` of byte `i mod 32` clear: subtract 4 from q |
//! | 32..96 | qs: low 2 bits of q; each 32 bytes hold 128 elements, 32 for each bit pair |
//! | 96..108 | scales: 16 low nibbles, then 16 high bit pairs; offset 32 |
//! | 108..110 | d, f16 |

use super::{Planes, blocks::f16_at};

pub(super) const HMASK: usize = 0;
pub(super) const QS: usize = 32;
pub(super) const SCALES: usize = 96;
pub(super) const D: usize = 108;

/// The bits, the scales, d.
pub(super) const PLANES: Planes =
    Planes::new("q3_k", 256, &[[HMASK, SCALES], [SCALES, D], [D, D + 2]]);

pub(super) fn dequantise(block: &[u8; 110], y: &mut [f32; 256]) {
    let d = f16_at(block, D);
    for (i, y) in y.iter_mut().enumerate() {
        let low = (block[QS + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
        let high = (block[HMASK + i % 32] >> (i / 32)) & 1;
        let q = (low | (high << 2)) as i8 - 4;
        *y = d * f32::from(scale(block, i / 16)) * f32::from(q);
    }
}

/// The scale of group `t` (0..16), -32..=31.
pub(super) fn scale(block: &[u8; 110], t: usize) -> i8 {
    let low = (block[SCALES + t % 8] >> (4 * (t / 8))) & 15;
    let high = (block[SCALES + 8 + t % 4] >> (2 * (t / 4))) & 3;
    (low | (high << 4)) as i8 - 32
}
