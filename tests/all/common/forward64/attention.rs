//! Softmax attention, spec/architectures.md 1.3.

use super::{
    math::{Matrix, Rope, add_scaled, dot, rms_norm, sigmoid, softmax},
    weights::Weights,
};

/// The weights of one attention layer.
pub(crate) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// `attn_q` holds query and gate of each head side by side.
    gated: bool,
    eps: f64,
    rope: Rope,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    output: Matrix,
    q_norm: Option<Vec<f64>>,
    k_norm: Option<Vec<f64>>,
}

/// The keys and values of one sequence: `[position][kv_heads · head_dim]`.
#[derive(Clone, Default)]
pub(crate) struct Cache {
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

impl Attention {
    /// Reads the layer whose tensors start with `prefix`.
    pub(crate) fn load(weights: &Weights, prefix: &str, gated: bool, rope: Rope) -> Self {
        let tensor = |name: &str| format!("{prefix}.{name}.weight");
        Self {
            heads: weights.count("attention.head_count"),
            kv_heads: weights.count("attention.head_count_kv"),
            head_dim: weights.head_dim(),
            gated,
            eps: weights.eps(),
            rope,
            q: weights.matrix(&tensor("attn_q")),
            k: weights.matrix(&tensor("attn_k")),
            v: weights.matrix(&tensor("attn_v")),
            output: weights.matrix(&tensor("attn_output")),
            q_norm: weights.find_vector(&tensor("attn_q_norm")),
            k_norm: weights.find_vector(&tensor("attn_k_norm")),
        }
    }

    /// Appends the token to `cache` and attends to all of it.
    pub(crate) fn step(&self, cache: &mut Cache, x: &[f64]) -> Vec<f64> {
        let d = self.head_dim;
        let position = cache.k.len();
        let finish = |head: &[f64], gamma: &Option<Vec<f64>>| {
            let mut head = match gamma {
                Some(gamma) => rms_norm(head, gamma, self.eps),
                None => head.to_vec(),
            };
            self.rope.rotate(&mut head, position);
            head
        };
        let k = self.k.mul(x);
        cache.k.push(k.chunks_exact(d).flat_map(|k| finish(k, &self.k_norm)).collect());
        cache.v.push(self.v.mul(x));

        let q = self.q.mul(x);
        let mut o = Vec::with_capacity(self.heads * d);
        for (h, q) in q.chunks_exact(q.len() / self.heads).enumerate() {
            let kv = h / (self.heads / self.kv_heads) * d;
            let (q, gate) = q.split_at(d);
            let q = finish(q, &self.q_norm);
            let score = |k: &Vec<f64>| dot(&q, &k[kv..kv + d]) / (d as f64).sqrt();
            let weights = softmax(&cache.k.iter().map(score).collect::<Vec<_>>());
            let mut head = vec![0.0; d];
            for (weight, v) in weights.iter().zip(&cache.v) {
                add_scaled(&mut head, *weight, &v[kv..kv + d]);
            }
            if self.gated {
                for (o, gate) in head.iter_mut().zip(gate) {
                    *o *= sigmoid(*gate);
                }
            }
            o.extend(head);
        }
        self.output.mul(&o)
    }
}
