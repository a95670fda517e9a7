//! MXFP4: 32 elements in 17 bytes. `y_i = 2^(e - 128) * VALUES[n_i]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | e, exponent; 255 is NaN |
//! | 1..17 | 32 nibbles n, halves |

use super::{Planes, blocks::nibble, tables::pairs};

pub(super) const E: usize = 0;
pub(super) const QS: usize = 1;

/// The sixteen E2M1 floats, doubled to be whole numbers; the scale is halved in turn. The reference
/// reads index 8, minus zero, as plain zero.
pub(super) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The nibbles, then the exponents.
pub(super) const PLANES: Planes =
    Planes::new("mxfp4", 32, &[[QS, QS + 16], [E, E + 1]]).with_table(&TABLE);

/// Also of NVFP4.
pub(super) const TABLE: [u32; 256] = pairs(&VALUES, 12);

pub(super) fn dequantise(block: &[u8; 17], y: &mut [f32; 32]) {
    let scale = scale(block[E]);
    for (i, y) in y.iter_mut().enumerate() {
        *y = scale * f32::from(VALUES[usize::from(nibble(&block[QS..], i))]);
    }
}

/// The largest exponent with which kernels compute: they add 12 to the values, so 24 times the scale
/// has to be a number.
const LARGEST: u8 = 251;

/// An exponent in `row` that is larger, but for that of NaN.
pub(super) fn excess(row: &[u8]) -> Option<u8> {
    let exponents = row.chunks_exact(17).map(|block| block[E]);
    exponents.filter(|e| *e < 255).max().filter(|e| *e > LARGEST)
}

/// `2^(e - 128)`; the two smallest are subnormal.
pub(super) fn scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x20_0000 << e),
        255 => f32::NAN,
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}
