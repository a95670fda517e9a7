//! The n-gram embedding's gate: what its key and a stream have in common decides how much of its
//! value the stream takes (spec/architectures.md 4.5.3).

use super::{Tensor, reduction_width};
use crate::{
    Error, Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    rows: u32,
    streams: u32,
    width: u32,
    eps: f32,
}

/// The norms of an n-gram layer, each `[1][streams·n_embd]`.
#[derive(Clone, Debug)]
pub struct PleNorms {
    /// `ple_norm_key`
    pub key: Tensor,
    /// `ple_norm_query`
    pub query: Tensor,
    /// `ple_norm_conv`
    pub conv: Tensor,
}

/// For the first `n` tokens and every stream c, with norms over the values of a stream:
///
/// ```text
/// s = (rms(k_c) · key) · (rms(x_c) · query) / sqrt(n_embd)
/// u = sigmoid(sign(s) · sqrt(max(|s|, 1e-6))) · v
/// x_c += u
/// normed_c = rms(u) · conv
/// ```
///
/// `k`, `x` and `normed` are `[n][streams][n_embd]`, `v` is `[n][n_embd]`. What is left to do is
/// to add the convolution of `normed` to x: [`super::causal_conv::record_add`].
///
/// # Errors
/// Shapes that do not fit, or streams that are not a whole number of `v`'s width.
#[expect(clippy::too_many_arguments)]
pub fn record(
    rec: &mut Recorder,
    k: &Tensor,
    v: &Tensor,
    norms: &PleNorms,
    x: &Tensor,
    normed: &Tensor,
    n: u32,
    eps: f32,
) -> Result<()> {
    let (all, width) = (x.width, v.width);
    if width == 0 || !all.is_multiple_of(width) {
        return Err(Error::Shader(format!("ple_gate: streams of {width} in rows of {all}")));
    }
    k.expect("ple_gate", "k", n, all)?;
    v.expect("ple_gate", "v", n, width)?;
    x.expect("ple_gate", "x", n, all)?;
    normed.expect("ple_gate", "normed", n, all)?;
    norms.key.expect("ple_gate", "key norm", 1, all)?;
    norms.query.expect("ple_gate", "query norm", 1, all)?;
    norms.conv.expect("ple_gate", "conv norm", 1, all)?;
    let caps = rec.gpu().caps();
    let variant = Variant::new("ple_gate")
        .flag("subgroup", caps.subgroup)
        .number("WG", reduction_width(width, caps));
    let streams = all / width;
    let rows = n * streams;
    let bindings = [
        (&k.buf).into(),
        (&v.buf).into(),
        (&norms.key.buf).into(),
        (&norms.query.buf).into(),
        (&norms.conv.buf).into(),
        (&x.buf).into(),
        (&normed.buf).into(),
    ];
    let params = Params { rows, streams, width, eps };
    rec.dispatch("ple_gate", &variant, &bindings, &params, Grid::Flat(u64::from(rows)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, random},
    };

    const EPS: f64 = 1e-6;

    struct Case {
        k: Vec<f32>,
        v: Vec<f32>,
        x: Vec<f32>,
        norms: [Vec<f32>; 3],
    }

    impl Case {
        fn new(n: usize, streams: usize, width: usize, scale: f32) -> Self {
            let all = streams * width;
            let big = |seed, n| random(seed, n).iter().map(|v| v * scale).collect();
            Self {
                k: big(1, n * all),
                v: big(2, n * width),
                x: big(3, n * all),
                norms: [random(4, all), random(5, all), random(6, all)],
            }
        }

        fn check(&self, t: &TestDevice, width: usize) {
            let all = self.norms[0].len();
            let n = self.v.len() / width;
            let gammas = self.norms.each_ref().map(Vec::as_slice);
            let (x_want, normed_want) =
                reference::ple_gate::gates(&self.k, &self.v, &self.x, gammas, width, EPS);
            let [key, query, conv] = self.norms.each_ref().map(|g| t.upload(g, all));
            let norms = PleNorms { key, query, conv };
            let (k, v) = (t.upload(&self.k, all), t.upload(&self.v, width));
            let (x, normed) = (t.upload(&self.x, all), t.scratch(n, all));
            t.run(|rec| record(rec, &k, &v, &norms, &x, &normed, n as u32, EPS as f32));
            assert_close(&t.read(&x), &x_want, 1e-5);
            assert_close(&t.read(&normed), &normed_want, 1e-5);
        }
    }

    #[test]
    fn streams_of_any_number_and_width() {
        each_device(|t| {
            for (n, streams, width) in [(1, 1, 1), (1, 4, 128), (3, 4, 31), (2, 3, 260)] {
                Case::new(n, streams, width, 1.0).check(t, width);
            }
        });
    }

    #[test]
    fn more_streams_than_workgroups_of_one_dimension() {
        each_device(|t| Case::new(76, 4, 32, 1.0).check(t, 32));
    }

    #[test]
    fn a_score_of_zero_opens_the_gate_by_half() {
        each_device(|t| {
            let mut case = Case::new(2, 2, 32, 1.0);
            case.k[..32].fill(0.0);
            case.x[32..64].fill(0.0);
            case.v[32..].fill(0.0);
            case.check(t, 32);
        });
    }

    #[test]
    fn small_scores_count_as_a_thousandth() {
        each_device(|t| {
            let mut case = Case::new(1, 1, 4, 1.0);
            // Scores of 1e-9 and -1e-9, below the floor of 1e-6.
            case.norms = [vec![1.0; 4], vec![1.0; 4], vec![1.0; 4]];
            case.k = vec![1.0, 0.0, 0.0, 0.0];
            for score in [1e-9, -1e-9] {
                case.x = vec![score, 1.0, 1.0, 1.0];
                case.check(t, 4);
            }
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| Case::new(2, 4, 64, 1e6).check(t, 64));
    }

    #[test]
    fn a_part_of_a_stream_is_refused() {
        each_device(|t| {
            let (x, v) = (t.scratch(1, 40), t.scratch(1, 16));
            let norms = PleNorms { key: x.clone(), query: x.clone(), conv: x.clone() };
            let mut rec = Recorder::new(&t.gpu);
            let e = record(&mut rec, &x, &v, &norms, &x, &x, 1, 1e-6).unwrap_err();
            assert!(e.to_string().contains("streams of 16 in rows of 40"), "{e}");
        });
    }
}
