//! RMSNorm of rows or of heads inside rows (spec/architectures.md 1.1).

use super::{Tensor, quantise, reduction_width};
use crate::{
    Result,
    gpu::{Bind, Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    rows: u32,
    width: u32,
    heads: u32,
    x_token: u32,
    x_head: u32,
    y_token: u32,
    y_head: u32,
    gamma_head: u32,
    eps: f32,
}

/// Heads inside the rows of a tensor: `count` of them, `stride` values apart, the first at 0.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Heads a token.
    pub count: u32,
    /// Values from one head to the next.
    pub stride: u32,
}

/// `y[t] = rms(x[t]) * gamma` for the first `n` rows; all widths equal.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    x: &Tensor,
    gamma: &Tensor,
    y: &Tensor,
    n: u32,
    eps: f32,
) -> Result<()> {
    let whole = Heads { count: 1, stride: x.width };
    y.expect("rms_norm", "y", n, x.width)?;
    record_heads(rec, (x, whole), gamma, (y, whole), n, eps)
}

/// `y[t][h] = rms(x[t][h]) * gamma[h]` for the heads of the first `n` rows; gamma has rows of the
/// head's width, one for each head or one for all. The rest of `y` is left alone.
///
/// # Errors
/// Shapes that do not fit.
pub fn record_heads(
    rec: &mut Recorder,
    (x, x_heads): (&Tensor, Heads),
    gamma: &Tensor,
    (y, y_heads): (&Tensor, Heads),
    n: u32,
    eps: f32,
) -> Result<()> {
    let width = gamma.width;
    x.expect("rms_norm", "x", n, x.width.max(x_heads.count * x_heads.stride))?;
    y.expect("rms_norm", "y", n, y.width.max(y_heads.count * y_heads.stride))?;
    let gammas = if gamma.rows == 1 { 1 } else { x_heads.count };
    gamma.expect("rms_norm", "gamma", gammas, width.min(x_heads.stride).min(y_heads.stride))?;
    let dense = y_heads.stride == width && y_heads.count * width == y.width;
    let whole = y.whole(n).filter(|_| dense && width.is_multiple_of(32));
    let subgroup = rec.gpu().caps().subgroup;
    let variant = Variant::new("rms_norm")
        .flag("subgroup", subgroup)
        .flag("whole", whole.is_some())
        .number("WG", reduction_width(width, rec.gpu().caps()));
    let rows = n * x_heads.count;
    let params = Params {
        rows,
        width,
        heads: x_heads.count,
        x_token: x.width,
        x_head: x_heads.stride,
        y_token: y.width,
        y_head: y_heads.stride,
        gamma_head: if gamma.rows == 1 { 0 } else { width },
        eps,
    };
    let mut bindings = vec![(&x.buf).into(), (&gamma.buf).into(), (&y.buf).into()];
    bindings.extend(whole.map(Bind::from));
    rec.dispatch("rms_norm", &variant, &bindings, &params, Grid::Flat(u64::from(rows)))?;
    if whole.is_some() { Ok(()) } else { quantise::record(rec, y, n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference::norms::rms_norm,
        testing::{assert_close, each_device, random},
    };

    #[test]
    fn rows_of_any_width() {
        each_device(|t| {
            for (n, width) in [(1, 1), (3, 31), (5, 64), (2, 257), (70, 100), (1, 2048)] {
                let (x, gamma) = (random(width as u64, n * width), random(7, width));
                let y = t.factor_scratch(n, width);
                let (x_t, gamma_t) = (t.upload(&x, width), t.upload(&gamma, width));
                t.run(|rec| record(rec, &x_t, &gamma_t, &y, n as u32, 1e-6));
                assert_close(&t.read(&y), &rms_norm(&x, &gamma, 1e-6), 1e-5);
                t.assert_whole(&y);
            }
        });
    }

    #[test]
    fn heads_in_wider_rows_leave_the_rest_alone() {
        each_device(|t| {
            let (n, heads, width, stride) = (3, 4, 8, 20);
            let (x, gamma) = (random(1, n * heads * stride), random(2, width));
            let (x_t, gamma_t) = (t.upload(&x, heads * stride), t.upload(&gamma, width));
            let y = t.upload(&vec![9.0; n * heads * stride], heads * stride);
            let h = Heads { count: heads as u32, stride: stride as u32 };
            t.run(|rec| record_heads(rec, (&x_t, h), &gamma_t, (&y, h), n as u32, 1e-6));
            for (row, out) in x.chunks(stride).zip(t.read(&y).chunks(stride)) {
                assert_close(&out[..width], &rms_norm(&row[..width], &gamma, 1e-6), 1e-5);
                assert!(out[width..].iter().all(|v| *v == 9.0));
            }
        });
    }

    #[test]
    fn heads_with_a_gamma_each() {
        each_device(|t| {
            let (n, heads, width) = (3, 4, 40);
            let (x, gamma) = (random(1, n * heads * width), random(2, heads * width));
            let want: Vec<f64> = x
                .chunks(width)
                .enumerate()
                .flat_map(|(r, x)| rms_norm(x, &gamma[r % heads * width..][..width], 1e-6))
                .collect();
            let (x_t, gamma_t) = (t.upload(&x, heads * width), t.upload(&gamma, width));
            let y = t.scratch(n, heads * width);
            let h = Heads { count: heads as u32, stride: width as u32 };
            t.run(|rec| record_heads(rec, (&x_t, h), &gamma_t, (&y, h), n as u32, 1e-6));
            assert_close(&t.read(&y), &want, 1e-5);
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| {
            let x: Vec<f32> = random(3, 64).iter().map(|v| v * 1e6).collect();
            let gamma = random(4, 64);
            let (x_t, gamma_t, y) = (t.upload(&x, 64), t.upload(&gamma, 64), t.scratch(1, 64));
            t.run(|rec| record(rec, &x_t, &gamma_t, &y, 1, 1e-6));
            assert_close(&t.read(&y), &rms_norm(&x, &gamma, 1e-6), 1e-5);
        });
    }
}
