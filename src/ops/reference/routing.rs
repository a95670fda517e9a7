//! The router (spec/architectures.md 1.5).

/// Experts of one token, best first, and their weights.
pub(crate) fn route(logits: &[f32], k: usize, scale: f64) -> (Vec<u32>, Vec<f64>) {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    order.truncate(k);
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let e = |v: f32| f64::from(v - max).exp();
    let all: f64 = logits.iter().map(|v| e(*v)).sum();
    let p: Vec<f64> = order.iter().map(|i| e(logits[*i as usize]) / all).collect();
    let sum = p.iter().sum::<f64>().max(6.103515625e-5);
    (order, p.iter().map(|p| scale * p / sum).collect())
}
