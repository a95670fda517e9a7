//! RMSNorm, gated or not (spec/architectures.md 1.1 and 1.4, step 7).

use super::{sigmoid, silu, wide};
use crate::ops::gated_norm::Activation;

/// `rms(x) * gamma` of one row.
pub(crate) fn rms(x: &[f64], gamma: &[f32], eps: f64) -> Vec<f64> {
    let squares: f64 = x.iter().map(|v| v * v).sum();
    let scale = 1.0 / (squares / x.len() as f64 + eps).sqrt();
    x.iter().zip(gamma).map(|(v, gamma)| v * scale * f64::from(*gamma)).collect()
}

/// `rms(x) * gamma` of rows as wide as gamma.
pub(crate) fn rms_norm(x: &[f32], gamma: &[f32], eps: f64) -> Vec<f64> {
    x.chunks(gamma.len()).flat_map(|row| rms(&wide(row), gamma, eps)).collect()
}

/// `rms(o) * gamma * act(z)` of heads as wide as gamma.
pub(crate) fn gated_norm(
    o: &[f32],
    z: &[f32],
    gamma: &[f32],
    eps: f64,
    act: Activation,
) -> Vec<f64> {
    let gate = match act {
        Activation::Silu => silu,
        Activation::Sigmoid => sigmoid,
    };
    rms_norm(o, gamma, eps).iter().zip(z).map(|(v, z)| v * gate(f64::from(*z))).collect()
}
