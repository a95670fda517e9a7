//! Adds the shared expert's output, scaled by its gate (spec/architectures.md 1.5, item 5).

use super::{Tensor, reduction_width};
use crate::{
    Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    n: u32,
    width: u32,
}

/// `y[t] += sigmoid(g · x[t]) · s[t]` for the first `n` rows: `g` `[n_embd]` is
/// `ffn_gate_inp_shexp`, `x` `[n][n_embd]` the feed-forward's input, `s` `[n][n_embd]` the shared
/// expert's output.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    g: &Tensor,
    x: &Tensor,
    s: &Tensor,
    y: &Tensor,
    n: u32,
) -> Result<()> {
    let width = y.width;
    g.expect("shared_gate", "g", 1, width)?;
    x.expect("shared_gate", "x", n, width)?;
    s.expect("shared_gate", "s", n, width)?;
    y.expect("shared_gate", "y", n, width)?;
    let caps = rec.gpu().caps();
    let variant = Variant::new("shared_gate")
        .flag("subgroup", caps.subgroup)
        .number("WG", reduction_width(width, caps));
    let bindings = [(&g.buf).into(), (&x.buf).into(), (&s.buf).into(), (&y.buf).into()];
    rec.dispatch("shared_gate", &variant, &bindings, &Params { n, width }, Grid::Flat(n.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{TestDevice, assert_close, each_device, random};

    fn check(t: &TestDevice, n: usize, width: usize, scale: f32) {
        let big = |seed| random(seed, n * width).iter().map(|v| v * scale).collect::<Vec<f32>>();
        let (g, x, s, y) = (random(1, width), big(2), big(3), big(4));
        let want: Vec<f64> = (0..n * width)
            .map(|i| {
                let row = i / width * width..(i / width + 1) * width;
                let dot: f64 =
                    g.iter().zip(&x[row]).map(|(g, x)| f64::from(*g) * f64::from(*x)).sum();
                f64::from(y[i]) + f64::from(s[i]) / (1.0 + (-dot).exp())
            })
            .collect();
        let (g, x) = (t.upload(&g, width), t.upload(&x, width));
        let (s, y) = (t.upload(&s, width), t.upload(&y, width));
        t.run(|rec| record(rec, &g, &x, &s, &y, n as u32));
        assert_close(&t.read(&y), &want, 1e-5);
    }

    #[test]
    fn rows_of_any_width() {
        each_device(|t| {
            for (n, width) in [(1, 1), (3, 31), (2, 64), (1, 2048), (301, 33)] {
                check(t, n, width, 1.0);
            }
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 3, 64, 1e6));
    }
}
