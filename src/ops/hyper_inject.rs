//! What a block made goes into every stream, and the streams are normed for what reads them next
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
    eps: f32,
}

/// The streams of a token side by side in a row.
#[derive(Clone, Copy, Debug)]
pub struct Streams<'a> {
    /// Their values `[n][streams][width]`.
    pub x: &'a Tensor,
    /// Their norm's weights `[streams][width]`.
    pub gamma: &'a Tensor,
    /// The normed values `[n][streams][width]`.
    pub normed: &'a Tensor,
}

/// What a block made, and with what weights it goes into the streams.
#[derive(Clone, Copy, Debug)]
pub struct Injection<'a> {
    /// Parts `[n][streams][streams]` of the weights, of [`Weighing::parts`] at an earlier time: the
    /// weight of stream c is `2 sigmoid(sum over a of parts[t][a][c])`.
    pub parts: &'a Tensor,
    /// The block's output `[n][width]`.
    pub y: &'a Tensor,
}

/// How the block that reads next weighs its output.
#[derive(Clone, Copy, Debug)]
pub struct Weighing<'a> {
    /// `[streams][streams * width]`: a row a weight, multiplied with all normed streams.
    pub rows: &'a Tensor,
    /// `[n][streams][streams]`: what each stream adds to each weight.
    pub parts: &'a Tensor,
}

/// `x[t][c] += 2 sigmoid(w[t][c]) * y[t]` where there is an injection, then `normed[t][c] =
/// rms(x[t][c]) * gamma[c]`, and the parts of the next weights where something weighs, for the
/// first `n` rows.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    Streams { x, gamma, normed }: Streams<'_>,
    injection: Option<Injection<'_>>,
    weighing: Option<Weighing<'_>>,
    n: u32,
    eps: f32,
) -> Result<()> {
    let op = "hyper_inject";
    let (streams, width) = (gamma.rows, gamma.width);
    x.expect(op, "x", n, streams * width)?;
    normed.expect(op, "normed", n, streams * width)?;
    let whole = normed.whole(n).filter(|_| width.is_multiple_of(32));
    let caps = rec.gpu().caps();
    let variant = Variant::new(op)
        .flag("inject", injection.is_some())
        .flag("weigh", weighing.is_some())
        .flag("whole", whole.is_some())
        .flag("subgroup", caps.subgroup)
        .number("WG", reduction_width(width, caps))
        .number("STREAMS", streams);
    let mut bindings: Vec<Bind<'_>> = [gamma, x, normed].map(|t| (&t.buf).into()).into();
    if let Some(Injection { parts, y }) = injection {
        parts.expect(op, "weights", n, streams * streams)?;
        y.expect(op, "y", n, width)?;
        bindings.extend([parts, y].map(|t| Bind::from(&t.buf)));
    }
    if let Some(Weighing { rows, parts }) = weighing {
        rows.expect(op, "rows", streams, streams * width)?;
        parts.expect(op, "parts", n, streams * streams)?;
        bindings.extend([rows, parts].map(|t| Bind::from(&t.buf)));
    }
    bindings.extend(whole.map(Bind::from));
    let rows = n * streams;
    let params = Params { rows, width, eps };
    rec.dispatch(op, &variant, &bindings, &params, Grid::Flat(rows.into()))?;
    if whole.is_some() { Ok(()) } else { quantise::record(rec, normed, n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, multiply, random},
    };

    /// One after the other: norm and weigh, inject and weigh by those weights, inject.
    fn check(t: &TestDevice, n: usize, streams: usize, width: usize, scale: f32) {
        let row = streams * width;
        let big = |seed, n| random(seed, n).iter().map(|v| v * scale).collect::<Vec<f32>>();
        let (mut x, gamma) = (big(3, n * row), random(4, row));
        // Weights of a sane size, whatever the width.
        let rows: Vec<f32> = random(5, streams * row).iter().map(|v| v / row as f32).collect();
        let (x_t, gamma_t, rows_t) =
            (t.upload(&x, row), t.upload(&gamma, width), t.upload(&rows, row));
        let parts = [0, 1].map(|_| t.scratch(n, streams * streams));
        let mut weights = vec![0.0; n * streams];
        for round in 0..3 {
            let y = big(6 + round, n * width);
            let (y_t, normed) = (t.upload(&y, width), t.factor_scratch(n, row));
            let (from, to) = (&parts[round as usize % 2], &parts[(round as usize + 1) % 2]);
            let injection = (round > 0).then_some(Injection { parts: from, y: &y_t });
            let weighing = (round < 2).then_some(Weighing { rows: &rows_t, parts: to });
            let all = Streams { x: &x_t, gamma: &gamma_t, normed: &normed };
            t.run(|rec| record(rec, all, injection, weighing, n as u32, 1e-6));
            let none = vec![0.0; n * width];
            let y = if round > 0 { &y } else { &none };
            let (sums, norms) = reference::hyper::inject(&weights, y, &x, &gamma, width, 1e-6);
            assert_close(&t.read(&x_t), &sums, 1e-5);
            assert_close(&t.read(&normed), &norms, 1e-5);
            t.assert_whole(&normed);
            if round < 2 {
                x = t.read(&x_t);
                let want = multiply(&rows, &t.read(&normed), row);
                let of = |parts: &[f32], c| parts.iter().skip(c).step_by(streams).sum::<f32>();
                weights = (t.read(to).chunks(streams * streams))
                    .flat_map(|parts| (0..streams).map(move |c| of(parts, c)))
                    .collect();
                assert_close(&weights, &want, 1e-5);
            }
        }
    }

    #[test]
    fn any_number_of_streams_and_widths() {
        each_device(|t| {
            for (n, streams, width) in [(1, 1, 1), (1, 4, 2560), (3, 6, 31), (90, 4, 70)] {
                check(t, n, streams, width, 3.0);
            }
        });
        check(&TestDevice::software(), 2, 4, 96, 3.0);
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 2, 4, 64, 1e6));
    }

    #[test]
    fn wrong_shapes_are_named() {
        each_device(|t| {
            let (small, x) = (t.scratch(1, 16), t.scratch(1, 64));
            let mut rec = Recorder::new(&t.gpu);
            let mut fails = |gamma, injection, weighing, named: &str| {
                let streams = Streams { x: &x, gamma, normed: &x };
                let e = record(&mut rec, streams, injection, weighing, 1, 1e-6).unwrap_err();
                assert!(e.to_string().contains(named), "{e}");
            };
            // One gamma for all streams.
            fails(&small, None, None, "hyper_inject: x is 1 x 64, wanted 1 x 16");
            let gamma = t.scratch(4, 16);
            let injection = Injection { parts: &x, y: &small };
            fails(&gamma, Some(injection), None, "hyper_inject: weights is 1 x 64");
            let weighing = Weighing { rows: &x, parts: &small };
            fails(&gamma, None, Some(weighing), "hyper_inject: rows is 1 x 64");
        });
    }
}
