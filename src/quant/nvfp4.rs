//! NVFP4: 64 elements in 36 bytes, a scale for each 16. `y_i = 0.5 * scale * VALUES[n_i]` with
//! MXFP4's table. A file gives the matrix, or each of a stack, a factor besides.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | scales: 4 bits exponent, 3 bits mantissa |
//! | 4..36 | 8 bytes a scale: nibbles n, the low ones for the first 8 elements |

use super::{Planes, mxfp4, mxfp4::VALUES};

pub(super) const SCALES: usize = 0;
pub(super) const QS: usize = 4;

/// The nibbles, the scales, the matrix's factor.
pub(super) const PLANES: Planes = Planes::new("nvfp4", 64, &[[QS, QS + 32], [SCALES, QS]])
    .with_table(&mxfp4::TABLE)
    .with_factor();

pub(super) fn dequantise(block: &[u8; 36], y: &mut [f32; 64]) {
    for (s, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = 0.5 * scale(block[SCALES + s]);
        for (j, y) in y.iter_mut().enumerate() {
            let n = (block[QS + 8 * s + j % 8] >> (4 * (j / 8))) & 15;
            *y = scale * f32::from(VALUES[usize::from(n)]);
        }
    }
}

/// `(1 + m / 8) * 2^(e - 7)`, for e = 0 `m * 2^-9`; 0 for all bits set. There is no sign.
pub(super) fn scale(bits: u8) -> f32 {
    let (e, m) = (i32::from((bits >> 3) & 15), f32::from(bits & 7));
    match (bits & 127, e) {
        (127, _) => 0.0,
        (_, 0) => m / 512.0,
        _ => (1.0 + m / 8.0) * (e as f32 - 7.0).exp2(),
    }
}
