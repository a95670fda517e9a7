//! Pooled keys, scores and choice of blocks (spec/architectures.md 4.5.4).

use super::rope::turn;
use crate::model::rope::RopeKind;

/// The pooled key of the block whose raw keys (as stored) are `keys`; it begins at `position`.
pub(crate) fn pooled(
    keys: &[f32],
    norm: (&[f32], f64),
    frequencies: &[f64],
    kind: RopeKind,
    position: u32,
) -> Vec<f64> {
    let d = norm.0.len();
    let ratio = keys.len() / d;
    let mean: Vec<f32> = (0..d)
        .map(|i| (0..ratio).map(|r| f64::from(keys[r * d + i])).sum::<f64>() / ratio as f64)
        .map(|mean| mean as f32)
        .collect();
    turn(&mean, Some(norm), frequencies, kind, position)
}

/// `sum_h relu(q_h . key) / sqrt(head_dim)`, `q` the heads one after the other.
pub(crate) fn score(q: &[f64], key: &[f64]) -> f64 {
    let dot = |q: &[f64]| -> f64 { q.iter().zip(key).map(|(a, b)| a * b).sum() };
    q.chunks(key.len()).map(|q| dot(q).max(0.0)).sum::<f64>() / (key.len() as f64).sqrt()
}

/// The `most` largest of `scores` by a full sort, ties to the lower index, ascending.
pub(crate) fn largest(scores: &[u32], most: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by_key(|b| (std::cmp::Reverse(scores[*b as usize]), *b));
    order.truncate(most);
    order.sort_unstable();
    order
}
