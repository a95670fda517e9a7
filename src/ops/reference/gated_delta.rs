//! The gated delta rule (spec/architectures.md 1.4, steps 3 to 6).

use super::{random, sigmoid, wide};
use crate::ops::gated_delta::{GatedDelta, HeadMap};

/// A layer's inputs: tokens, then weights, then the state to start from.
pub(crate) struct Case {
    pub(crate) shape: GatedDelta,
    pub(crate) n: usize,
    pub(crate) u: Vec<f32>,
    pub(crate) alpha: Vec<f32>,
    pub(crate) beta: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
    pub(crate) ssm_a: Vec<f32>,
    pub(crate) state: Vec<f32>,
}

impl Case {
    /// Random values with a state to start from; decays are around `exp(-decay)`.
    pub(crate) fn new(shape: GatedDelta, n: usize, decay: f32) -> Self {
        let (v, d) = (shape.value_heads as usize, shape.head_dim as usize);
        Self {
            shape,
            n,
            u: random(1, n * shape.conv_dim() as usize),
            alpha: random(2, n * v).iter().map(|a| a * 3.0).collect(),
            beta: random(3, n * v).iter().map(|b| b * 4.0).collect(),
            dt_bias: random(4, v),
            ssm_a: random(5, v).iter().map(|a| -decay * (a + 1.5)).collect(),
            state: random(6, v * d * d),
        }
    }

    /// `[n][V | V]`: alpha and beta as the kernels want them.
    pub(crate) fn gates(&self) -> Vec<f32> {
        let heads = self.shape.value_heads as usize;
        let tokens = self.alpha.chunks(heads).zip(self.beta.chunks(heads));
        tokens.flat_map(|(alpha, beta)| [alpha, beta].concat()).collect()
    }

    /// Output and final state.
    pub(crate) fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let (kh, vh) = (self.shape.key_heads as usize, self.shape.value_heads as usize);
        let d = self.shape.head_dim as usize;
        let mut state = wide(&self.state);
        let mut out = vec![0.0; self.n * vh * d];
        for (t, row) in self.u.chunks(self.shape.conv_dim() as usize).enumerate() {
            for h in 0..vh {
                let key_head = match self.shape.map {
                    HeadMap::Tiled => h % kh,
                    HeadMap::Grouped => h / (vh / kh),
                };
                let values = |start: usize| wide(&row[start..start + d]);
                let unit = |start: usize| {
                    let x = values(start);
                    let norm = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|v| v / norm).collect::<Vec<f64>>()
                };
                let (q, k) = (unit(key_head * d), unit((kh + key_head) * d));
                let v = values((2 * kh + h) * d);
                let at = |x: &[f32]| f64::from(x[t * vh + h]);
                let softplus = (at(&self.alpha) + f64::from(self.dt_bias[h])).exp().ln_1p();
                let decay = (softplus * f64::from(self.ssm_a[h])).exp();
                let beta = sigmoid(at(&self.beta));
                let s = &mut state[h * d * d..(h + 1) * d * d];
                for j in 0..d {
                    let known: f64 = (0..d).map(|i| decay * s[i * d + j] * k[i]).sum();
                    let delta = beta * (v[j] - known);
                    for i in 0..d {
                        s[i * d + j] = decay * s[i * d + j] + k[i] * delta;
                    }
                    let dot: f64 = (0..d).map(|i| s[i * d + j] * q[i]).sum();
                    out[(t * vh + h) * d + j] = dot / (d as f64).sqrt();
                }
            }
        }
        (out, state)
    }
}
