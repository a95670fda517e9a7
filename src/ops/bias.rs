//! `y[t] += b` (llama's optional biases).

use super::Tensor;
use crate::{
    Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    values: u32,
    width: u32,
}

const WORKGROUP: u32 = 256;

/// Adds `b` to each of the first `n` rows of `y`.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(rec: &mut Recorder, b: &Tensor, y: &Tensor, n: u32) -> Result<()> {
    b.expect("bias", "b", 1, y.width)?;
    y.expect("bias", "y", n, y.width)?;
    let params = Params { values: n * y.width, width: y.width };
    let grid = Grid::Flat(u64::from(params.values.div_ceil(WORKGROUP)));
    rec.dispatch("bias", &Variant::new("bias"), &[(&b.buf).into(), (&y.buf).into()], &params, grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, each_device, random};

    #[test]
    fn every_row_and_no_other() {
        each_device(|t| {
            for (n, width) in [(1, 1), (3, 255), (300, 300)] {
                let (b, y) = (random(1, width), random(2, (n + 1) * width));
                let (b_t, y_t) = (t.upload(&b, width), t.upload(&y, width));
                t.run(|rec| record(rec, &b_t, &y_t, n as u32));
                let add = |(i, v): (usize, &f32)| {
                    let b = if i < n * width { b[i % width] } else { 0.0 };
                    f64::from(*v) + f64::from(b)
                };
                let want: Vec<f64> = y.iter().enumerate().map(add).collect();
                assert_close(&t.read(&y_t), &want, 1e-6);
            }
        });
    }
}
