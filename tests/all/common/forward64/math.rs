//! The functions of spec/architectures.md 1.1 and 1.2, in f64.

use half::f16;

/// What a matrix product sees of its input.
#[derive(Clone, Copy)]
pub(crate) enum Inputs {
    /// All of it.
    Exact,
    /// Values rounded to float16: how much a model amplifies such rounding.
    Float16,
}

/// A weight of `n_out` contiguous rows of `n_in` values.
pub(crate) struct Matrix {
    n_in: usize,
    rows: Vec<f32>,
    inputs: Inputs,
}

impl Matrix {
    /// Takes `rows` of `n_in` values, one after the other.
    pub(crate) fn new(n_in: usize, rows: Vec<f32>, inputs: Inputs) -> Self {
        assert!(n_in > 0 && rows.len().is_multiple_of(n_in), "whole rows of {n_in}");
        Self { n_in, rows, inputs }
    }

    /// Row `o`, as f64.
    pub(crate) fn row(&self, o: usize) -> Vec<f64> {
        self.rows[o * self.n_in..(o + 1) * self.n_in].iter().map(|&w| f64::from(w)).collect()
    }

    /// `y[o] = Σ_i W[o][i]·x[i]`.
    pub(crate) fn mul(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.n_in, "input width");
        let x: Vec<f64> = match self.inputs {
            Inputs::Exact => x.to_vec(),
            Inputs::Float16 => x.iter().map(|&x| f16::from_f64(x).to_f64()).collect(),
        };
        self.rows
            .chunks_exact(self.n_in)
            .map(|row| row.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum())
            .collect()
    }
}

/// `Σ a·b`.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `y += scale·x`.
pub(crate) fn add_scaled(y: &mut [f64], scale: f64, x: &[f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}

/// `x · rsqrt(mean(x²) + eps) · gamma`.
pub(crate) fn rms_norm(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(gamma).map(|(x, gamma)| x * scale * gamma).collect()
}

/// `x · rsqrt(Σx² + 1e-6)`.
pub(crate) fn l2_norm(x: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `e^x / Σe^x`.
pub(crate) fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|x| x / sum).collect()
}

/// Which dimensions of a head rotate together.
#[derive(Clone, Copy)]
pub(crate) enum Pairs {
    /// `(2i, 2i + 1)`: llama.
    Adjacent,
    /// `(i, i + n_rot/2)`: the Qwen models.
    Halves,
}

/// Rotary embedding of the first `n_rot` dimensions of a head.
#[derive(Clone, Copy)]
pub(crate) struct Rope {
    pub(crate) pairs: Pairs,
    pub(crate) n_rot: usize,
    pub(crate) base: f64,
}

impl Rope {
    /// Rotates pair i by `position · base^(-2i/n_rot)`.
    pub(crate) fn rotate(&self, head: &mut [f64], position: usize) {
        for i in 0..self.n_rot / 2 {
            let angle = position as f64 * self.base.powf(-2.0 * i as f64 / self.n_rot as f64);
            let (sin, cos) = angle.sin_cos();
            let (a, b) = match self.pairs {
                Pairs::Adjacent => (2 * i, 2 * i + 1),
                Pairs::Halves => (i, i + self.n_rot / 2),
            };
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
}
