//! Causal depthwise convolution over time with its tail, then silu (spec/architectures.md 1.4,
//! step 2).

use super::Tensor;
use crate::{
    Error, Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    n: u32,
    channels: u32,
}

/// Channels and tokens of one workgroup, as in the shader.
const STRIP: u32 = 64;
const BLOCK: u32 = 16;

/// `u[t][ch] = silu(Σ_j w[ch][j] · x[t − (c−1) + j][ch])` for the first `n` rows, where the rows
/// before the first are those of `tail`; then `tail` becomes the last c−1 rows.
///
/// `x` and `u` are `[n][channels]`, `weight` is `[channels][c]` with the current token's tap last,
/// `tail` is `[c−1][channels]` (zeros for a new sequence).
///
/// # Errors
/// Shapes that do not fit, or a kernel of less than 2 or more than 17 taps.
pub fn record(
    rec: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    tail: &Tensor,
    u: &Tensor,
    n: u32,
) -> Result<()> {
    let (channels, taps) = (x.width, weight.width);
    if !(2..=BLOCK + 1).contains(&taps) {
        return Err(Error::Shader(format!("causal_conv: {taps} taps, supported are 2 to 17")));
    }
    x.expect("causal_conv", "x", n, channels)?;
    weight.expect("causal_conv", "weight", channels, taps)?;
    tail.expect("causal_conv", "tail", taps - 1, channels)?;
    u.expect("causal_conv", "u", n, channels)?;
    let variant = Variant::new("causal_conv").number("TAPS", taps);
    let bindings = [(&x.buf).into(), (&weight.buf).into(), (&tail.buf).into(), (&u.buf).into()];
    let workgroups = u64::from(channels.div_ceil(STRIP)) * u64::from(n.div_ceil(BLOCK));
    rec.dispatch(
        "causal_conv",
        &variant,
        &bindings,
        &Params { n, channels },
        Grid::Flat(workgroups),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{TestDevice, assert_close, each_device, random};

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    /// Output and new tail.
    fn reference(
        x: &[f32],
        w: &[f32],
        tail: &[f32],
        channels: usize,
        taps: usize,
    ) -> (Vec<f64>, Vec<f32>) {
        let rows = [tail, x].concat();
        let at = |t: usize, ch: usize| f64::from(rows[t * channels + ch]);
        let out = (0..x.len() / channels)
            .flat_map(|t| (0..channels).map(move |ch| (t, ch)))
            .map(|(t, ch)| {
                silu((0..taps).map(|j| f64::from(w[ch * taps + j]) * at(t + j, ch)).sum())
            })
            .collect();
        (out, rows[x.len()..].to_vec())
    }

    fn check(t: &TestDevice, n: usize, channels: usize, taps: usize, scale: f32) {
        let x: Vec<f32> = random(n as u64, n * channels).iter().map(|v| v * scale).collect();
        let (w, tail) = (random(1, channels * taps), random(2, (taps - 1) * channels));
        let (want, want_tail) = reference(&x, &w, &tail, channels, taps);
        let u = t.scratch(n, channels);
        let (x, w, tail) = (t.upload(&x, channels), t.upload(&w, taps), t.upload(&tail, channels));
        t.run(|rec| record(rec, &x, &w, &tail, &u, n as u32));
        assert_close(&t.read(&u), &want, 1e-6);
        assert_eq!(t.read(&tail), want_tail, "tail after {n} tokens");
    }

    #[test]
    fn any_length_and_kernel() {
        each_device(|t| {
            for n in [1, 2, 3, 4, 15, 16, 17, 33, 130] {
                check(t, n, 80, 4, 1.0);
            }
            for taps in [2, 3, 5, 8, 17] {
                for n in [1, 2, 7, 8, 21] {
                    check(t, n, 33, taps, 1.0);
                }
            }
        });
    }

    #[test]
    fn more_workgroups_than_one_dimension_holds() {
        each_device(|t| check(t, 101 * 16, 3 * 64, 4, 1.0));
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 20, 64, 4, 1e6));
    }

    #[test]
    fn token_by_token_equals_all_at_once() {
        each_device(|t| {
            let (n, channels, taps) = (9, 70, 4);
            let (x, w) = (random(3, n * channels), t.upload(&random(4, channels * taps), taps));
            let zeros = vec![0.0; (taps - 1) * channels];
            let run = |rows: &[f32], tail: &Tensor| {
                let x = t.upload(rows, channels);
                let u = t.scratch(rows.len() / channels, channels);
                t.run(|rec| record(rec, &x, &w, tail, &u, x.rows));
                t.read(&u)
            };
            let (whole_tail, step_tail) = (t.upload(&zeros, channels), t.upload(&zeros, channels));
            let whole = run(&x, &whole_tail);
            let steps: Vec<f32> = x.chunks(channels).flat_map(|row| run(row, &step_tail)).collect();
            assert_eq!(whole, steps);
            assert_eq!(t.read(&whole_tail), t.read(&step_tail));
        });
    }
}
