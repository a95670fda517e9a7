//! Hyper-connections (spec/architectures.md 4.5.1, 4.5.2).

use super::{norms::rms, sigmoid};

/// `sum_c sigmoid(gates[t][c]) * normed[t][c]`.
pub(crate) fn mix(normed: &[f32], gates: &[f32], streams: usize, width: usize) -> Vec<f64> {
    let gated = |i: usize| f64::from(normed[i]) * sigmoid(f64::from(gates[i]));
    let of = |i: usize, c: usize| (i / width * streams + c) * width + i % width;
    (0..normed.len() / streams).map(|i| (0..streams).map(|c| gated(of(i, c))).sum()).collect()
}

/// `x[t][c] + 2 sigmoid(weights[t][c]) * y[t]`, and its norm; gamma is `[streams][width]`.
pub(crate) fn inject(
    weights: &[f32],
    y: &[f32],
    x: &[f32],
    gamma: &[f32],
    width: usize,
    eps: f64,
) -> (Vec<f64>, Vec<f64>) {
    let streams = gamma.len() / width;
    let (mut sums, mut norms) = (Vec::new(), Vec::new());
    for (r, x) in x.chunks(width).enumerate() {
        let weight = 2.0 * sigmoid(f64::from(weights[r]));
        let y = &y[r / streams * width..][..width];
        let sum: Vec<f64> =
            x.iter().zip(y).map(|(x, y)| f64::from(*x) + weight * f64::from(*y)).collect();
        norms.extend(rms(&sum, &gamma[r % streams * width..][..width], eps));
        sums.extend(sum);
    }
    (sums, norms)
}
