//! Mixture of experts (spec/architectures.md 1.5).

use super::{multiply, silu, wide};

/// Weights of a stack of experts: each is `[expert][rows][width]`.
pub(crate) struct Weights<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) down: &'a [f32],
    pub(crate) n_embd: usize,
    pub(crate) n_ff: usize,
}

impl Weights<'_> {
    /// `before + sum_s weights[t][s] * down_e(silu(gate_e x[t]) * (up_e x[t]))`, e the expert
    /// `ids[t][s]`.
    pub(crate) fn add(&self, before: &[f32], x: &[f32], ids: &[u32], weights: &[f32]) -> Vec<f64> {
        let Self { n_embd, n_ff, .. } = *self;
        let slots = ids.len() * n_embd / x.len();
        let mut y = wide(before);
        for (pair, (&e, &weight)) in ids.iter().zip(weights).enumerate() {
            let [gate, up, down] = [self.gate, self.up, self.down]
                .map(|all| &all[e as usize * n_embd * n_ff..][..n_embd * n_ff]);
            let (token, x) = (pair / slots, &x[pair / slots * n_embd..][..n_embd]);
            let (g, u) = (multiply(gate, x, n_embd), multiply(up, x, n_embd));
            let h: Vec<f32> = g.iter().zip(u).map(|(g, u)| (silu(*g) * u) as f32).collect();
            let d = multiply(down, &h, n_ff);
            y[token * n_embd..].iter_mut().zip(d).for_each(|(y, d)| *y += f64::from(weight) * d);
        }
        y
    }
}
