//! Probabilities of the tokens that were and could have been chosen.

use super::queue::Logprobs;

/// Of `chosen` and of the `top` most likely tokens, by the logits f32 `[vocab]`.
pub(super) fn of(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
    let log = |x: f32| (f64::from(x) - f64::from(max) - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let falling =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if top < order.len() {
        order.select_nth_unstable_by(top, falling);
        order.truncate(top);
    }
    order.sort_unstable_by(falling);
    Logprobs {
        chosen: logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |x| log(*x)),
        top: order.into_iter().map(|id| (id, log(logits[id as usize]))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_softmax_of_all_logits_counts() {
        let logits = [0.5_f32, 0.125, 0.25, 0.125].map(f32::ln);
        let found = of(&logits, 3, 2);
        assert!((found.chosen.exp() - 0.125).abs() < 1e-6);
        let ids: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 2]);
        assert!((found.top[0].1.exp() - 0.5).abs() < 1e-6);
        assert_eq!(of(&logits, 0, 9).top.len(), 4);
        assert_eq!(of(&logits, 0, 0).top, []);
        let banned = of(&[f32::NEG_INFINITY, 3.0], 1, 2);
        assert_eq!((banned.chosen, banned.top[1].1), (0.0, f32::NEG_INFINITY));
    }
}
