//! Causal depthwise convolution over time with its tail, then silu (spec/architectures.md 1.4
//! step 2, and 4.5.3 with gaps between the taps).

use super::{Tensor, Tokens};
use crate::{
    Error, Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    first: u32,
    n: u32,
    channels: u32,
}

/// Channels and tokens of one workgroup, as in the shader.
const STRIP: u32 = 64;
const BLOCK: u32 = 32;

/// `u[t][ch] = silu(Σ_j w[ch][j] · x[t − (c−1) + j][ch])` for the rows of `tokens`, where the
/// rows before the first are those of `tail`; then `tail` becomes the last c−1 rows.
///
/// `x` and `u` are `[step's n][channels]`, `weight` is `[channels][c]` with the current token's tap last,
/// `tail` is `[c−1][channels]` (zeros for a new sequence).
///
/// # Errors
/// Shapes that do not fit, or a kernel of less than 2 taps or a tail of more than 32 rows.
pub fn record(
    rec: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    tail: &Tensor,
    u: &Tensor,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    dispatch(rec, x, weight, 1, tail, u, tokens.into(), false)
}

/// `y[t][ch] += silu(Σ_j w[ch][j] · x[t − (c−1−j)·dilation][ch])` for the rows of `tokens`,
/// where the rows before the first are those of `tail`; then `tail` becomes the last (c−1)·dilation rows.
///
/// `x` and `y` are `[step's n][channels]`, `weight` is `[channels][c]` with the current token's tap last,
/// `tail` is `[(c−1)·dilation][channels]` (zeros for a new sequence).
///
/// # Errors
/// As [`record`].
pub fn record_add(
    rec: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    dilation: u32,
    tail: &Tensor,
    y: &Tensor,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    dispatch(rec, x, weight, dilation, tail, y, tokens.into(), true)
}

#[expect(clippy::too_many_arguments)]
fn dispatch(
    rec: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    dilation: u32,
    tail: &Tensor,
    u: &Tensor,
    tokens: Tokens,
    add: bool,
) -> Result<()> {
    let (channels, taps) = (x.width, weight.width);
    let Tokens { first, n } = tokens;
    let history = u64::from(taps.saturating_sub(1)) * u64::from(dilation);
    if !(1..=u64::from(BLOCK)).contains(&history) {
        return Err(Error::Shader(format!(
            "causal_conv: {taps} taps {dilation} apart reach {history} rows back, not 1 to {BLOCK}"
        )));
    }
    x.expect("causal_conv", "x", tokens.end(), channels)?;
    weight.expect("causal_conv", "weight", channels, taps)?;
    tail.expect("causal_conv", "tail", history as u32, channels)?;
    u.expect("causal_conv", "u", tokens.end(), channels)?;
    let variant = Variant::new("causal_conv")
        .flag("add", add)
        .number("TAPS", taps)
        .number("DILATION", dilation);
    let bindings = [(&x.buf).into(), (&weight.buf).into(), (&tail.buf).into(), (&u.buf).into()];
    let workgroups = u64::from(channels.div_ceil(STRIP)) * u64::from(n.div_ceil(BLOCK));
    let params = Params { first, n, channels };
    rec.dispatch("causal_conv", &variant, &bindings, &params, Grid::Flat(workgroups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference::causal_conv::{Kernel, convolve},
        testing::{TestDevice, assert_close, each_device, random},
    };

    fn check(t: &TestDevice, n: usize, channels: usize, kernel: Kernel, scale: f32) {
        let (taps, dilation) = kernel;
        let x: Vec<f32> = random(n as u64, n * channels).iter().map(|v| v * scale).collect();
        let w = random(1, channels * taps);
        let tail = random(2, (taps - 1) * dilation * channels);
        let (mut want, want_tail) = convolve(&x, &w, &tail, channels, kernel);
        let (x, w, tail) = (t.upload(&x, channels), t.upload(&w, taps), t.upload(&tail, channels));
        let u = if dilation == 1 {
            let u = t.scratch(n, channels);
            t.run(|rec| record(rec, &x, &w, &tail, &u, n as u32));
            u
        } else {
            let before = random(3, n * channels);
            want.iter_mut().zip(&before).for_each(|(u, y)| *u += f64::from(*y));
            let y = t.upload(&before, channels);
            t.run(|rec| record_add(rec, &x, &w, dilation as u32, &tail, &y, n as u32));
            y
        };
        assert_close(&t.read(&u), &want, 1e-6);
        assert_eq!(t.read(&tail), want_tail, "tail after {n} tokens");
    }

    #[test]
    fn any_length_and_kernel() {
        each_device(|t| {
            for n in [1, 2, 3, 4, 31, 32, 33, 130] {
                check(t, n, 80, (4, 1), 1.0);
            }
            for taps in [2, 5, 17, 33] {
                for n in [1, 2, 7, 8, 40] {
                    check(t, n, 33, (taps, 1), 1.0);
                }
            }
        });
    }

    #[test]
    fn taps_apart_are_added() {
        each_device(|t| {
            for n in [1, 2, 8, 9, 10, 32, 33, 70] {
                check(t, n, 80, (4, 3), 1.0);
            }
            for n in [1, 23, 40] {
                check(t, n, 33, (4, 8), 1.0);
            }
        });
    }

    #[test]
    fn more_workgroups_than_one_dimension_holds() {
        each_device(|t| check(t, 101 * 32, 3 * 64, (4, 1), 1.0));
    }

    #[test]
    fn a_tail_longer_than_a_block_is_refused() {
        each_device(|t| {
            let (x, w, tail) = (t.scratch(1, 8), t.scratch(8, 5), t.scratch(36, 8));
            let e = record_add(&mut Recorder::new(&t.gpu), &x, &w, 9, &tail, &x, 1).unwrap_err();
            assert!(e.to_string().contains("5 taps 9 apart reach 36 rows back"), "{e}");
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 20, 64, (4, 1), 1e6));
    }

    #[test]
    fn token_by_token_equals_all_at_once() {
        each_device(|t| {
            for (taps, dilation) in [(4, 1), (4, 3)] {
                let (n, channels) = (21, 70);
                let (x, w) = (random(3, n * channels), t.upload(&random(4, channels * taps), taps));
                let zeros = vec![0.0; (taps - 1) * dilation * channels];
                let run = |rows: &[f32], tail: &Tensor| {
                    let x = t.upload(rows, channels);
                    let u = t.upload(&vec![0.0; rows.len()], channels);
                    t.run(|rec| record_add(rec, &x, &w, dilation as u32, tail, &u, x.rows));
                    t.read(&u)
                };
                let (whole_tail, step_tail) =
                    (t.upload(&zeros, channels), t.upload(&zeros, channels));
                let whole = run(&x, &whole_tail);
                let steps: Vec<f32> =
                    x.chunks(channels).flat_map(|row| run(row, &step_tail)).collect();
                assert_eq!(whole, steps);
                assert_eq!(t.read(&whole_tail), t.read(&step_tail));
            }
        });
    }
}
