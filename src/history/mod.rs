//! A sequence, what is kept of it between prompts, and where a new prompt can go on. A sequence
//! with recurrent state can only be taken back to a checkpoint.

mod cuts;
mod points;

pub use points::Points;

pub(crate) use points::Point;

use crate::{
    Engine, Result,
    sequence::{Checkpoint, Sequence},
    text::TokenType,
};

/// How checkpoints are taken and kept.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointOptions {
    /// Bytes for those of all sequences together.
    pub memory: u64,
    /// Most of one sequence.
    pub count: usize,
    /// One is taken at least every so many tokens of a prompt.
    pub every: usize,
}

/// A sequence and the points that it can go back to.
#[derive(Debug)]
pub struct History {
    pub(crate) sequence: Sequence,
    pub(crate) points: Points<Checkpoint>,
}

impl History {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new(engine: &Engine) -> Result<Self> {
        Ok(Self { sequence: engine.new_sequence()?, points: Points::default() })
    }

    /// The sequence, to take steps with. Whoever takes it back forgets the points beyond.
    pub fn sequence(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    /// The tokens it holds.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// The checkpoints it keeps.
    pub fn points(&mut self) -> &mut Points<Checkpoint> {
        &mut self.points
    }

    /// Bytes of the checkpoints it keeps.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.points.bytes()
    }

    /// Forgets everything; buffers are kept.
    pub fn clear(&mut self, engine: &Engine) {
        engine.clear(&mut self.sequence);
        self.points.cut(0);
    }

    /// Takes it to the longest beginning of `prompt` that it can be taken to, or to nothing unless
    /// it is to `reuse` anything; returns how many tokens that has, fewer than the prompt.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn rewind(&mut self, engine: &Engine, prompt: &[u32], reuse: bool) -> Result<usize> {
        let held = self.tokens().len();
        // What a prompt that was broken off has not come to again.
        self.points.cut(held);
        let common = common(self.tokens(), prompt);
        let wanted = if reuse { self.reusable(prompt) } else { 0 };
        if wanted == held && !self.sequence.is_broken() {
            return Ok(held);
        }
        if let Some(checkpoint) = self.sequence.checkpoint_at(wanted) {
            engine.restore(&mut self.sequence, &checkpoint)?;
        } else if let Some(point) = self.points.at(wanted) {
            engine.restore(&mut self.sequence, &point.checkpoint)?;
            self.points.cut(common);
        } else {
            self.clear(engine);
        }
        let goes_on = self.tokens().len();
        let prompt = prompt.len();
        tracing::info!(
            "of {held} tokens held, the first {common} start the prompt of {prompt}; it goes on \
             after {goes_on}"
        );
        Ok(goes_on)
    }

    /// How many tokens of `prompt` would not have to be processed.
    pub fn reusable(&self, prompt: &[u32]) -> usize {
        if self.sequence.is_broken() {
            return 0;
        }
        let positions = self.points.positions();
        reusable(self.tokens(), positions, self.goes_anywhere(), prompt)
    }

    /// Whether it needs no checkpoints.
    pub(crate) fn goes_anywhere(&self) -> bool {
        self.sequence.checkpoint_at(0).is_some()
    }

    /// Where to stop in `prompt` to take checkpoints, ascending.
    pub fn cuts(&self, engine: &Engine, prompt: &[u32], every: usize) -> Vec<usize> {
        if self.goes_anywhere() {
            return Vec::new();
        }
        let vocab = engine.tokenizer().vocab();
        let is_control = |token| vocab.token_type(token) == Some(TokenType::Control);
        cuts::cuts(prompt, self.tokens().len(), every, is_control)
    }

    /// Keeps the present point among at most `most`, if there is memory for it: it only saves time.
    pub fn keep(&mut self, engine: &Engine, most: usize) {
        match engine.checkpoint(&self.sequence) {
            Ok(checkpoint) => {
                let (position, bytes) = (checkpoint.position(), checkpoint.bytes());
                self.points.add(Point { position, bytes, checkpoint }, most);
            }
            Err(error) => tracing::warn!("no checkpoint is kept: {error}"),
        }
    }
}

/// How many tokens of `prompt` need not be processed after `held`, which can be taken back to
/// `positions` (ascending), or `anywhere`.
pub(crate) fn reusable(
    held: &[u32],
    positions: impl DoubleEndedIterator<Item = usize>,
    anywhere: bool,
    prompt: &[u32],
) -> usize {
    let common = common(held, prompt);
    if common == held.len() && common < prompt.len() {
        return common;
    }
    // The last token is always processed: its logits are not kept.
    let most = common.min(prompt.len().saturating_sub(1));
    if anywhere {
        return most;
    }
    positions.rev().find(|position| *position <= most).unwrap_or(0)
}

/// Tokens that `held` and `prompt` start with alike.
fn common(held: &[u32], prompt: &[u32]) -> usize {
    held.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_reused() {
        let held: Vec<u32> = (0..40).collect();
        let of =
            |prompt: &[u32], anywhere| reusable(&held, [10, 20, 30].into_iter(), anywhere, prompt);
        let longer: Vec<u32> = (0..50).collect();
        assert_eq!((of(&longer, false), of(&longer, true)), (40, 40));
        let changed = |at: usize| {
            let mut prompt = longer.clone();
            prompt[at] = 99;
            prompt
        };
        assert_eq!((of(&changed(25), false), of(&changed(25), true)), (20, 25));
        assert_eq!(of(&changed(30), false), 30);
        assert_eq!(of(&changed(9), false), 0);
        // A token has to be left.
        assert_eq!((of(&held, false), of(&held, true)), (30, 39));
        assert_eq!(of(&longer[..30], false), 20);
        assert_eq!((of(&[], false), of(&[], true)), (0, 0));
    }
}
