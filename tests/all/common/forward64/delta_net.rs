//! Gated delta net, the recurrence of spec/architectures.md 1.4.

use std::collections::VecDeque;

use super::{
    math::{Matrix, add_scaled, dot, l2_norm, rms_norm, sigmoid, silu, softplus},
    weights::Weights,
};

/// The weights of one GDN layer.
pub(crate) struct DeltaNet {
    /// `d_k = d_v`.
    head_dim: usize,
    key_heads: usize,
    value_heads: usize,
    eps: f64,
    qkv: Matrix,
    z: Matrix,
    alpha: Matrix,
    beta: Matrix,
    /// `[conv_dim][taps]`, the current token's tap last.
    conv: Matrix,
    /// `-exp(A_log)`.
    a: Vec<f64>,
    dt_bias: Vec<f64>,
    norm: Vec<f64>,
    output: Matrix,
}

/// What the layer remembers of one sequence.
#[derive(Clone)]
pub(crate) struct Memory {
    /// The last `taps - 1` raw qkv vectors, oldest first.
    tail: VecDeque<Vec<f64>>,
    /// `S[value head][k][v]`.
    s: Vec<Vec<Vec<f64>>>,
}

impl DeltaNet {
    /// Reads the layer whose tensors start with `prefix`.
    pub(crate) fn load(weights: &Weights, prefix: &str) -> Self {
        let tensor = |name: &str| format!("{prefix}.{name}.weight");
        Self {
            head_dim: weights.count("ssm.state_size"),
            key_heads: weights.count("ssm.group_count"),
            value_heads: weights.count("ssm.time_step_rank"),
            eps: weights.eps(),
            qkv: weights.matrix(&tensor("attn_qkv")),
            z: weights.matrix(&tensor("attn_gate")),
            alpha: weights.matrix(&tensor("ssm_alpha")),
            beta: weights.matrix(&tensor("ssm_beta")),
            conv: weights.matrix(&tensor("ssm_conv1d")),
            a: weights.vector(&format!("{prefix}.ssm_a")),
            dt_bias: weights.vector(&format!("{prefix}.ssm_dt.bias")),
            norm: weights.vector(&tensor("ssm_norm")),
            output: weights.matrix(&tensor("ssm_out")),
        }
    }

    /// The state before the first token: zeros.
    pub(crate) fn memory(&self) -> Memory {
        let conv_dim = (2 * self.key_heads + self.value_heads) * self.head_dim;
        let taps = self.conv.row(0).len();
        Memory {
            tail: vec![vec![0.0; conv_dim]; taps - 1].into(),
            s: vec![vec![vec![0.0; self.head_dim]; self.head_dim]; self.value_heads],
        }
    }

    /// One token through convolution, recurrence, norm and gate.
    pub(crate) fn step(&self, memory: &mut Memory, x: &[f64]) -> Vec<f64> {
        let d = self.head_dim;
        let u = self.convolve(memory, self.qkv.mul(x));
        let (q, kv) = u.split_at(self.key_heads * d);
        let (k, v) = kv.split_at(self.key_heads * d);
        let q: Vec<_> = q.chunks_exact(d).map(l2_norm).collect();
        let k: Vec<_> = k.chunks_exact(d).map(l2_norm).collect();
        let (z, a, b) = (self.z.mul(x), self.alpha.mul(x), self.beta.mul(x));

        let mut o = Vec::with_capacity(self.value_heads * d);
        for h in 0..self.value_heads {
            // GGUF stores the value heads tiled over the key heads (1.4.1).
            let (q, k) = (&q[h % self.key_heads], &k[h % self.key_heads]);
            let decay = (softplus(a[h] + self.dt_bias[h]) * self.a[h]).exp();
            let (v, z) = (&v[h * d..(h + 1) * d], &z[h * d..(h + 1) * d]);
            let head = update(&mut memory.s[h], decay, sigmoid(b[h]), q, k, v);
            let head = rms_norm(&head, &self.norm, self.eps);
            o.extend(head.iter().zip(z).map(|(o, &z)| o * silu(z)));
        }
        self.output.mul(&o)
    }

    /// Causal depthwise convolution over time, then silu.
    fn convolve(&self, memory: &mut Memory, qkv: Vec<f64>) -> Vec<f64> {
        memory.tail.push_back(qkv);
        let channels = memory.tail[0].len();
        let u = (0..channels)
            .map(|channel| {
                let window: Vec<f64> = memory.tail.iter().map(|t| t[channel]).collect();
                silu(dot(&self.conv.row(channel), &window))
            })
            .collect();
        memory.tail.pop_front();
        u
    }
}

/// `S ← decay·S`, `δ = β·(v − Sᵀk)`, `S ← S + k·δᵀ`; returns `Sᵀq/√d_k`.
fn update(s: &mut [Vec<f64>], decay: f64, beta: f64, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let mut delta = v.to_vec();
    for (s, k) in s.iter_mut().zip(k) {
        s.iter_mut().for_each(|s| *s *= decay);
        add_scaled(&mut delta, -k, s);
    }
    delta.iter_mut().for_each(|delta| *delta *= beta);
    let (mut o, k_len) = (vec![0.0; v.len()], k.len());
    for ((s, k), q) in s.iter_mut().zip(k).zip(q) {
        add_scaled(s, *k, &delta);
        add_scaled(&mut o, q / (k_len as f64).sqrt(), s);
    }
    o
}
