//! What a block made goes into every stream, and the streams are normed for the block that follows
//! (spec/architectures.md 4.5.1, 4.5.2).

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
    streams: u32,
    eps: f32,
}

/// `x[t][c] += 2 sigmoid(weights[t][c]) * y[t]`, then `normed[t][c] = rms(x[t][c]) * gamma[c]` for
/// the first `n` rows, all streams side by side in a row of `x` and `normed`.
///
/// # Errors
/// Shapes that do not fit.
#[expect(clippy::too_many_arguments)]
pub fn record(
    rec: &mut Recorder,
    weights: &Tensor,
    y: &Tensor,
    x: &Tensor,
    gamma: &Tensor,
    normed: &Tensor,
    n: u32,
    eps: f32,
) -> Result<()> {
    let (streams, width) = (weights.width, y.width);
    weights.expect("hyper_inject", "weights", n, streams)?;
    y.expect("hyper_inject", "y", n, width)?;
    x.expect("hyper_inject", "x", n, streams * width)?;
    gamma.expect("hyper_inject", "gamma", streams, width)?;
    normed.expect("hyper_inject", "normed", n, streams * width)?;
    let whole = normed.whole(n).filter(|_| width.is_multiple_of(32));
    let caps = rec.gpu().caps();
    let variant = Variant::new("hyper_inject")
        .flag("subgroup", caps.subgroup)
        .flag("whole", whole.is_some())
        .number("WG", reduction_width(width, caps));
    let tensors = [weights, y, gamma, x, normed];
    let rows = n * streams;
    let params = Params { rows, width, streams, eps };
    let mut bindings: Vec<_> = tensors.map(|t| Bind::from(&t.buf)).into();
    bindings.extend(whole.map(Bind::from));
    rec.dispatch("hyper_inject", &variant, &bindings, &params, Grid::Flat(rows.into()))?;
    if whole.is_some() { Ok(()) } else { quantise::record(rec, normed, n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, random},
    };

    fn check(t: &TestDevice, n: usize, streams: usize, width: usize, scale: f32) {
        let row = streams * width;
        let big = |seed, n| random(seed, n).iter().map(|v| v * scale).collect::<Vec<f32>>();
        let (weights, y, x) = (big(1, n * streams), big(2, n * width), big(3, n * row));
        let gamma = random(4, row);
        let (sums, norms) = reference::hyper::inject(&weights, &y, &x, &gamma, width, 1e-6);
        let (weights, y, x) = (t.upload(&weights, streams), t.upload(&y, width), t.upload(&x, row));
        let (gamma, normed) = (t.upload(&gamma, width), t.factor_scratch(n, row));
        t.run(|rec| record(rec, &weights, &y, &x, &gamma, &normed, n as u32, 1e-6));
        assert_close(&t.read(&x), &sums, 1e-5);
        assert_close(&t.read(&normed), &norms, 1e-5);
        t.assert_whole(&normed);
    }

    #[test]
    fn any_number_of_streams_and_widths() {
        each_device(|t| {
            for (n, streams, width) in [(1, 1, 1), (1, 4, 2560), (3, 2, 31), (90, 4, 70)] {
                check(t, n, streams, width, 3.0);
            }
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 2, 4, 64, 1e6));
    }

    #[test]
    fn one_gamma_for_all_streams_is_refused() {
        each_device(|t| {
            let (w, y, x) = (t.scratch(1, 4), t.scratch(1, 16), t.scratch(1, 64));
            let mut rec = Recorder::new(&t.gpu);
            let e = record(&mut rec, &w, &y, &x, &y, &x, 1, 1e-6).unwrap_err();
            assert!(e.to_string().contains("hyper_inject: gamma is 1 x 16"), "{e}");
        });
    }
}
