//! Norm and rotation of a head (spec/architectures.md 1.2).

use super::{norms::rms, wide};
use crate::model::rope::RopeKind;

/// One head at `position`, after the norm (gamma, eps) if there is one.
pub(crate) fn turn(
    x: &[f32],
    norm: Option<(&[f32], f64)>,
    frequencies: &[f64],
    kind: RopeKind,
    position: u32,
) -> Vec<f64> {
    let x = wide(x);
    let mut y = norm.map_or_else(|| x.clone(), |(gamma, eps)| rms(&x, gamma, eps));
    for (i, f) in frequencies.iter().enumerate() {
        let (a, b) = match kind {
            RopeKind::Norm => (2 * i, 2 * i + 1),
            RopeKind::Neox => (i, i + frequencies.len()),
        };
        let (sin, cos) = (f64::from(position) * f).sin_cos();
        (y[a], y[b]) = (y[a] * cos - y[b] * sin, y[a] * sin + y[b] * cos);
    }
    y
}

/// Frequencies of plain rotation with base `base`.
pub(crate) fn frequencies(n_rot: usize, base: f64) -> Vec<f64> {
    (0..n_rot / 2).map(|i| base.powf(-2.0 * i as f64 / n_rot as f64)).collect()
}
