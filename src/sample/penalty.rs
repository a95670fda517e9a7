//! Repeat, presence and frequency penalties over a window of the latest tokens, prompt and
//! generated ones alike (spec/cli-and-server.md 3).

use std::collections::{HashMap, VecDeque};

use super::SamplingParams;

/// The latest tokens and how often each occurs among them.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Most tokens looked back at; `None` without limit.
    limit: Option<usize>,
    /// The window in order; stays empty without a limit, for nothing ever leaves it.
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Window {
    pub(super) fn new(repeat_last_n: i32) -> Self {
        let limit = usize::try_from(repeat_last_n).ok();
        Self { limit, recent: VecDeque::new(), counts: HashMap::new() }
    }

    pub(super) fn push(&mut self, token: u32) {
        *self.counts.entry(token).or_insert(0) += 1;
        let Some(limit) = self.limit else { return };
        self.recent.push_back(token);
        if self.recent.len() > limit
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    /// Applies the three penalties to the logits of the tokens in the window.
    pub(super) fn apply(&self, params: &SamplingParams, logits: &mut [f32]) {
        for &token in self.counts.keys() {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = self.adjusted(params, token, *logit);
        }
    }

    /// The logit of `token` after the penalties.
    pub(super) fn adjusted(&self, params: &SamplingParams, token: u32, logit: f32) -> f32 {
        let Some(&count) = self.counts.get(&token) else { return logit };
        let repeat = params.repeat_penalty;
        let logit = if logit > 0.0 { logit / repeat } else { logit * repeat };
        logit - (params.presence_penalty + count as f32 * params.frequency_penalty)
    }

    /// Different tokens in the window.
    pub(super) fn tokens(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(last_n: i32, tokens: &[u32], params: &SamplingParams) -> Vec<f32> {
        let mut window = Window::new(last_n);
        tokens.iter().for_each(|&t| window.push(t));
        let mut logits = vec![4.0, -4.0, 4.0, 4.0];
        window.apply(params, &mut logits);
        logits
    }

    #[test]
    fn repeat_penalty_pushes_both_signs_down() {
        let params = SamplingParams { repeat_penalty: 2.0, ..Default::default() };
        assert_eq!(penalised(64, &[0, 1, 0], &params), [2.0, -8.0, 4.0, 4.0]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let presence = SamplingParams { presence_penalty: 1.0, ..Default::default() };
        assert_eq!(penalised(64, &[0, 0, 1], &presence), [3.0, -5.0, 4.0, 4.0]);
        let frequency = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
        assert_eq!(penalised(64, &[0, 0, 1], &frequency), [2.0, -5.0, 4.0, 4.0]);
    }

    #[test]
    fn tokens_leave_the_window() {
        let params = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
        let tokens = [0, 0, 2, 3, 3];
        assert_eq!(penalised(-1, &tokens, &params), [2.0, -4.0, 3.0, 2.0]);
        assert_eq!(penalised(4, &tokens, &params), [3.0, -4.0, 3.0, 2.0]);
        assert_eq!(penalised(2, &tokens, &params), [4.0, -4.0, 4.0, 2.0]);
    }
}
