//! The n-gram embedding's gate (spec/architectures.md 4.5.3).

use super::{norms::rms, sigmoid, wide};

/// What one stream takes, and its norm; `gammas` are those of key, query and convolution.
fn gate(k: &[f32], v: &[f32], x: &[f32], gammas: [&[f32]; 3], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let (key, query) = (rms(&wide(k), gammas[0], eps), rms(&wide(x), gammas[1], eps));
    let dot: f64 = key.iter().zip(&query).map(|(a, b)| a * b).sum();
    let score = dot / (v.len() as f64).sqrt();
    let sign = if score == 0.0 { 0.0 } else { score.signum() };
    let gate = sigmoid(sign * score.abs().max(1e-6).sqrt());
    let u: Vec<f64> = wide(v).iter().map(|v| v * gate).collect();
    let normed = rms(&u, gammas[2], eps);
    (u, normed)
}

/// What all streams of all tokens become, and the norms; every gamma is `[streams][width]`.
pub(crate) fn gates(
    k: &[f32],
    v: &[f32],
    x: &[f32],
    gammas: [&[f32]; 3],
    width: usize,
    eps: f64,
) -> (Vec<f64>, Vec<f64>) {
    let streams = gammas[0].len() / width;
    let (mut sums, mut norms) = (Vec::new(), Vec::new());
    for (r, (k, x)) in k.chunks(width).zip(x.chunks(width)).enumerate() {
        let gammas = gammas.map(|gamma| &gamma[r % streams * width..][..width]);
        let (u, normed) = gate(k, &v[r / streams * width..][..width], x, gammas, eps);
        sums.extend(x.iter().zip(&u).map(|(x, u)| f64::from(*x) + u));
        norms.extend(normed);
    }
    (sums, norms)
}
