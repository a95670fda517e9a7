//! RMSNorm of rows (spec/architectures.md 1.1).

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
    eps: f32,
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
    let width = x.width;
    x.expect("rms_norm", "x", n, width)?;
    y.expect("rms_norm", "y", n, width)?;
    gamma.expect("rms_norm", "gamma", 1, width)?;
    let whole = y.whole(n).filter(|_| width.is_multiple_of(32));
    let subgroup = rec.gpu().caps().subgroup;
    let variant = Variant::new("rms_norm")
        .flag("subgroup", subgroup)
        .flag("whole", whole.is_some())
        .number("WG", reduction_width(width, rec.gpu().caps()));
    let mut bindings = vec![(&x.buf).into(), (&gamma.buf).into(), (&y.buf).into()];
    bindings.extend(whole.map(Bind::from));
    let params = Params { rows: n, width, eps };
    rec.dispatch("rms_norm", &variant, &bindings, &params, Grid::Flat(u64::from(n)))?;
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
