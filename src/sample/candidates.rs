//! The list of tokens that are still in the draw, and the filters that shorten it
//! (spec/cli-and-server.md 3). No filter sorts more of the vocabulary than it keeps.

use std::cmp::Ordering;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Larger logits first, equal ones by lower id. Logits are never NaN here.
    fn order(&self, other: &Self) -> Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal);
        by_logit.then(self.id.cmp(&other.id))
    }

    /// Logit relative to the largest one, in f64 so that no finite difference overflows.
    fn below(&self, max: f32) -> f64 {
        f64::from(self.logit) - f64::from(max)
    }

    /// Probability relative to that of the largest logit.
    fn weight(&self, max: f32) -> f64 {
        self.below(max).exp()
    }
}

/// The tokens left after each filter. A filter always leaves the largest logit in.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    /// Keys of the list while `typical` orders it by something other than the logit.
    keyed: Vec<(f64, Candidate)>,
}

impl Candidates {
    /// Starts with the tokens whose logits reach `floor` (`f32::MIN`: all that are possible).
    pub(super) fn fill(&mut self, logits: &[f32], floor: f32) {
        self.list.clear();
        self.list.extend(each(logits).filter(|c| c.logit >= floor));
    }

    /// Starts with the `k` largest of the tokens, which come by id, whose logits reach `floor`, in
    /// falling order.
    ///
    /// One pass: a logit enters only above the smallest of the best `k` known so far, so that of a
    /// whole vocabulary a few hundred are ever stored.
    pub(super) fn fill_top(
        &mut self,
        tokens: impl Iterator<Item = Candidate>,
        floor: f32,
        k: usize,
    ) {
        let room = 2 * k.max(64);
        let mut least = f32::NEG_INFINITY;
        self.list.clear();
        for candidate in tokens.filter(|c| c.logit >= floor) {
            // An equal logit that comes later has a higher id and ranks below.
            if self.list.len() >= k && candidate.logit <= least {
                continue;
            }
            self.list.push(candidate);
            if self.list.len() == room {
                self.list.select_nth_unstable_by(k - 1, Candidate::order);
                self.list.truncate(k);
                least = self.list[k - 1].logit;
            }
        }
        self.list.sort_unstable_by(Candidate::order);
        self.list.truncate(k);
    }

    /// Keeps the most probable tokens until their probabilities sum to `p`, in falling order.
    pub(super) fn top_p(&mut self, p: f32) {
        let max = self.max();
        let total = self.list.iter().map(|c| c.weight(max)).sum::<f64>();
        let mut sum = 0.0;
        let keep = sorted_prefix(&mut self.list, Candidate::order, |c| {
            sum += c.weight(max);
            sum < f64::from(p) * total
        });
        self.list.truncate(keep);
    }

    /// Keeps the tokens whose surprise is closest to the entropy until their probabilities sum to
    /// `p` (locally typical sampling, <https://arxiv.org/abs/2202.00666>).
    pub(super) fn typical(&mut self, p: f32) {
        let max = self.max();
        let log_total = self.list.iter().map(|c| c.weight(max)).sum::<f64>().ln();
        let surprise = |c: &Candidate| log_total - c.below(max);
        let entropy = self.list.iter().map(|c| (-surprise(c)).exp() * surprise(c)).sum::<f64>();
        self.keyed.clear();
        self.keyed.extend(self.list.iter().map(|c| ((surprise(c) - entropy).abs(), *c)));
        let mut sum = 0.0;
        let order = |a: &(f64, Candidate), b: &(f64, Candidate)| {
            a.0.total_cmp(&b.0).then_with(|| a.1.order(&b.1))
        };
        let keep = sorted_prefix(&mut self.keyed, order, |(_, c)| {
            sum += (-surprise(c)).exp();
            sum < f64::from(p)
        });
        self.list.clear();
        self.list.extend(self.keyed.iter().map(|&(_, c)| c));
        self.list.truncate(keep);
    }

    /// Keeps tokens with at least `p` times the largest probability.
    pub(super) fn min_p(&mut self, p: f32) {
        let floor = self.max() + p.ln();
        self.list.retain(|c| c.logit >= floor);
    }

    /// Draws by probability at `temperature` (above 0); `uniform` lies in [0, 1).
    pub(super) fn draw(&self, temperature: f32, uniform: f64) -> Option<u32> {
        let max = self.max();
        let weight = |c: &Candidate| (c.below(max) / f64::from(temperature)).exp();
        let target = uniform * self.list.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        // Rounding can leave the target at the very end: then the last token with any weight.
        let mut last = None;
        for candidate in &self.list {
            let weight = weight(candidate);
            if weight > 0.0 {
                sum += weight;
                last = Some(candidate.id);
                if sum > target {
                    break;
                }
            }
        }
        last
    }

    /// The first of them: after [`Self::fill_top`] the largest.
    pub(super) fn first(&self) -> Option<u32> {
        self.list.first().map(|c| c.id)
    }

    fn max(&self) -> f32 {
        self.list.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit))
    }
}

/// Every token, by id.
pub(super) fn each(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit })
}

/// Sorts `list` from the front just as far as `more` asks to go on after an item; returns how many
/// items were asked about. The sorted part doubles, so that a short answer costs one selection.
fn sorted_prefix<T>(
    list: &mut [T],
    order: impl Fn(&T, &T) -> Ordering,
    mut more: impl FnMut(&T) -> bool,
) -> usize {
    let mut start = 0;
    while start < list.len() {
        let end = (2 * start).max(256).min(list.len());
        let rest = &mut list[start..];
        if end - start < rest.len() {
            rest.select_nth_unstable_by(end - start, &order);
        }
        let block = &mut rest[..end - start];
        block.sort_unstable_by(&order);
        if let Some(last) = block.iter().position(|item| !more(item)) {
            return start + last + 1;
        }
        start = end;
    }
    list.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.fill(logits, f32::MIN);
        candidates
    }

    fn ids(candidates: &Candidates) -> Vec<u32> {
        candidates.list.iter().map(|c| c.id).collect()
    }

    fn full_sort(logits: &[f32]) -> Vec<Candidate> {
        let mut list: Vec<_> = each(logits).filter(|c| c.logit.is_finite()).collect();
        list.sort_by(Candidate::order);
        list
    }

    /// Few distinct values, so that ties are common.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![9 => (-40..40i32).prop_map(|x| x as f32 / 4.0),
                                1 => Just(f32::NEG_INFINITY)];
        prop::collection::vec(value, 1..2000)
    }

    proptest! {
        #[test]
        fn fill_top_equals_a_full_sort(logits in logits(), k in 1..300usize) {
            let mut candidates = Candidates::default();
            candidates.fill_top(each(&logits), f32::MIN, k);
            let mut expected = full_sort(&logits);
            expected.truncate(k);
            prop_assert_eq!(candidates.list, expected);
        }

        #[test]
        fn top_p_equals_a_full_sort(logits in logits(), p in 0.0..1.0f32) {
            let sorted = full_sort(&logits);
            prop_assume!(!sorted.is_empty());
            let max = sorted[0].logit;
            let mut candidates = filled(&logits);
            candidates.top_p(p);
            let kept = candidates.list.len();
            prop_assert_eq!(&candidates.list, &sorted[..kept]);
            let mass = |list: &[Candidate]| list.iter().map(|c| c.weight(max)).sum::<f64>();
            let share = |n: usize| mass(&sorted[..n]) / mass(&sorted);
            prop_assert!(share(kept) >= f64::from(p) - 1e-9);
            prop_assert!(kept == 1 || share(kept - 1) < f64::from(p) + 1e-9);
        }

        #[test]
        fn min_p_keeps_exactly_the_probable(logits in logits(), p in 0.001..1.0f32) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assume!(max.is_finite());
            let mut candidates = filled(&logits);
            candidates.min_p(p);
            let expected: Vec<u32> = each(&logits)
                .filter(|c| c.logit >= max + p.ln())
                .map(|c| c.id)
                .collect();
            prop_assert_eq!(ids(&candidates), expected);
        }

        #[test]
        fn no_filter_leaves_nothing_or_depends_on_order(logits in logits(), p in 0.0..1.0f32) {
            prop_assume!(logits.iter().any(|x| x.is_finite()));
            for filter in [Candidates::top_p, Candidates::typical, Candidates::min_p] {
                let mut candidates = filled(&logits);
                filter(&mut candidates, p);
                let mut sorted = Candidates::default();
                sorted.fill_top(each(&logits), f32::MIN, logits.len());
                filter(&mut sorted, p);
                let (mut a, mut b) = (ids(&candidates), ids(&sorted));
                a.sort_unstable();
                b.sort_unstable();
                prop_assert!(!a.is_empty());
                prop_assert_eq!(a, b);
            }
        }
    }

    #[test]
    fn typical_prefers_the_expected_surprise() {
        // Probabilities 0.5, 0.25, 0.125, 0.125: entropy 1.75 ln 2, so the surprise of the second
        // (2 ln 2) is the closest, then the first (1 ln 2).
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let mut candidates = filled(&logits);
        candidates.typical(0.2);
        assert_eq!(ids(&candidates), [1]);
        let mut candidates = filled(&logits);
        candidates.typical(0.7);
        assert_eq!(ids(&candidates), [1, 0]);
    }

    #[test]
    fn a_draw_never_takes_an_impossible_token() {
        let candidates = filled(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]);
        for uniform in [0.0, 0.5, 1.0 - f64::EPSILON, 1.0] {
            assert_eq!(candidates.draw(1.0, uniform), Some(1));
        }
    }
}
