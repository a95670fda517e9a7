//! Rows of x in f16 for products by cooperative matrices: each divided by a power of two of its own,
//! so that activations of any size fit.

use super::{Tensor, reduction_width};
use crate::{
    Result,
    gpu::{Buf, Grid, Recorder},
    shader::Variant,
};
use std::ops::Range;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    first: u32,
    n: u32,
    n_in: u32,
}

/// Bytes of a row of `width` values: filled to 32, then the exponent in 16 bytes.
pub(super) fn row_bytes(width: u32) -> u64 {
    u64::from(width).next_multiple_of(32) * 2 + 16
}

/// Writes `rows` of x to `f16`.
///
/// # Errors
/// [`crate::Error::Shader`] when the rows are too many for the device.
pub(super) fn record(rec: &mut Recorder, x: &Tensor, f16: &Buf, rows: Range<u32>) -> Result<()> {
    let caps = rec.gpu().caps();
    let variant = Variant::new("f16_rows")
        .flag("odd", !x.width.is_multiple_of(32))
        .flag("subgroup", caps.subgroup)
        .number("WG", reduction_width(x.width.div_ceil(4), caps));
    let n = rows.len() as u32;
    let params = Params { first: rows.start, n, n_in: x.width };
    let bindings = [(&x.buf).into(), f16.into()];
    rec.dispatch("f16_rows", &variant, &bindings, &params, Grid::Flat(n.into()))
}
