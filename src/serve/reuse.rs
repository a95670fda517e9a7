//! What is kept of earlier requests, and where a new one can go on (spec/cli-and-server.md 4.5).
//! A sequence with recurrent state can only be taken back to a checkpoint, so checkpoints are
//! taken where later prompts are likely to part from this one.

/// How checkpoints are taken and kept.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointOptions {
    /// Bytes for those of all slots together.
    pub memory: u64,
    /// Most in one slot.
    pub count: usize,
    /// One is taken at least every so many tokens of a prompt.
    pub every: usize,
}

/// A cut of a prompt costs a step; what lies closer than this is processed again as fast.
const NEAR: usize = 64;

/// Most tokens of a question about a long text that comes before it.
const QUESTION: usize = 512;

/// Where to stop in `prompt`, of which `held` tokens are processed, to take a checkpoint:
///
/// - after the first turn, which other conversations may share (instructions and tools),
/// - before the last one, the start of the answer: a template may render the answer otherwise
///   next time, without its thinking,
/// - some way before that, for another question about the same long text,
/// - every `every` tokens, for whatever may change,
/// - before the last token, if nothing else is near it, so that the prompt can be repeated.
///
/// A turn starts with the first control token that comes more than once.
pub(super) fn cuts(
    prompt: &[u32],
    held: usize,
    every: usize,
    is_control: impl Fn(u32) -> bool,
) -> Vec<usize> {
    let end = prompt.len().saturating_sub(1);
    let mut controls = prompt.iter().enumerate().filter(|(_, token)| is_control(**token));
    let opens = controls.find(|(at, token)| prompt[at + 1..].contains(token)).map(|(_, t)| *t);
    let starts = || prompt.iter().enumerate().filter(|(_, t)| Some(**t) == opens).map(|(at, _)| at);
    let answer = starts().next_back().filter(|at| *at > 0 && end - at < NEAR);
    let last = answer.unwrap_or(end);
    let first = starts().nth(1).filter(|at| *at < last);
    let question = last.checked_sub(QUESTION).filter(|at| *at >= QUESTION);
    let regular = (1..).map(|i| i * every.max(NEAR)).take_while(|at| *at < last);
    let mut all: Vec<usize> = regular.chain(first).chain(question).collect();
    all.sort_unstable();
    let mut before = held;
    all.retain(|&at| {
        let far = at >= before + NEAR && at + NEAR <= last;
        if far {
            before = at;
        }
        far
    });
    all.extend((last > held).then_some(last));
    all
}

/// A checkpoint of a sequence.
#[derive(Debug)]
pub(super) struct Point<C> {
    pub(super) position: usize,
    pub(super) bytes: u64,
    pub(super) checkpoint: C,
}

/// The checkpoints of one sequence, ascending.
#[derive(Debug)]
pub(super) struct Points<C>(Vec<Point<C>>);

impl<C> Default for Points<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<C> Points<C> {
    /// The last one that leaves `prompt`, which the sequence shares up to `common`, something to
    /// process: the logits after it are not kept.
    pub(super) fn best(&self, common: usize, prompt: usize) -> Option<&Point<C>> {
        self.0.iter().rfind(|point| point.position <= common && point.position < prompt)
    }

    /// Forgets those past `position`, where the sequence changes.
    pub(super) fn cut(&mut self, position: usize) {
        self.0.retain(|point| point.position <= position);
    }

    /// Adds one, which comes after all others, and keeps `most`.
    pub(super) fn add(&mut self, point: Point<C>, most: usize) {
        self.0.retain(|other| other.position < point.position);
        self.0.push(point);
        while self.0.len() > most {
            self.drop_least();
        }
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|point| point.bytes).sum()
    }

    /// Tokens that the least useful one saves: those since the one before it. The last one, where
    /// the conversation goes on, counts for more than any other.
    pub(super) fn least(&self) -> Option<usize> {
        self.least_index().map(|(saved, _)| saved)
    }

    /// Forgets the least useful one.
    pub(super) fn drop_least(&mut self) {
        if let Some((_, index)) = self.least_index() {
            self.0.remove(index);
        }
    }

    fn least_index(&self) -> Option<(usize, usize)> {
        let last = self.0.len().checked_sub(1)?;
        let saved = |i: usize| match i {
            _ if i == last => usize::MAX,
            0 => self.0[0].position,
            _ => self.0[i].position - self.0[i - 1].position,
        };
        (0..self.0.len()).map(|i| (saved(i), i)).min()
    }
}

/// Tokens that `held` and `prompt` start with alike.
pub(super) fn common(held: &[u32], prompt: &[u32]) -> usize {
    held.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Opens a turn.
    const OPEN: u32 = 9;
    const BEGIN: u32 = 8;

    fn of(prompt: &[u32], held: usize) -> Vec<usize> {
        cuts(prompt, held, 1000, |token| token == OPEN || token == BEGIN)
    }

    fn turns(lengths: &[usize]) -> Vec<u32> {
        lengths.iter().flat_map(|n| std::iter::once(OPEN).chain(vec![0; n - 1])).collect()
    }

    #[test]
    fn a_chat_is_cut_after_the_instructions_and_before_the_answer() {
        assert_eq!(of(&turns(&[100, 200, 5]), 0), [100, 300]);
        assert_eq!(of(&turns(&[100, 200, 150, 80, 5]), 300), [530]);
        assert_eq!(of(&turns(&[10, 20, 5]), 0), [30], "too near to be worth a step");
        let with_begin = [vec![BEGIN], turns(&[100, 200, 5])].concat();
        assert_eq!(of(&with_begin, 0), [101, 301]);
    }

    #[test]
    fn a_text_is_cut_before_its_last_token() {
        assert_eq!(of(&[0; 10], 0), [9]);
        assert_eq!(of(&[0; 2400], 0), [1000, 1887, 2000, 2399]);
        assert_eq!(of(&[0; 2400], 1950), [2399], "the others are too near");
        assert_eq!(of(&[OPEN], 0), [0; 0]);
        assert_eq!(of(&turns(&[100, 200]), 0), [100, 299], "the last turn is no answer's start");
    }

    proptest! {
        #[test]
        fn cuts_ascend_and_leave_a_token(
            prompt in prop::collection::vec(0..10u32, 1..600),
            held in 0..300usize,
            every in 0..200usize,
        ) {
            let held = held.min(prompt.len() - 1);
            let cuts = cuts(&prompt, held, every, |t| t > 7);
            prop_assert!(cuts.iter().all(|at| (held + 1..prompt.len()).contains(at)));
            prop_assert!(cuts.is_sorted_by(|a, b| a < b));
        }
    }

    fn points(positions: &[usize]) -> Points<()> {
        let mut points = Points::default();
        for &position in positions {
            points.add(Point { position, bytes: 10, checkpoint: () }, 4);
        }
        points
    }

    fn positions(points: &Points<()>) -> Vec<usize> {
        points.0.iter().map(|point| point.position).collect()
    }

    #[test]
    fn the_best_point_is_the_last_before_the_change_and_the_end() {
        let points = points(&[10, 20, 30]);
        let best = |common, prompt| points.best(common, prompt).map(|p| p.position);
        assert_eq!(best(25, 100), Some(20));
        assert_eq!(best(30, 100), Some(30));
        assert_eq!(best(30, 30), Some(20), "a token has to be left");
        assert_eq!(best(9, 100), None);
    }

    #[test]
    fn the_least_useful_point_goes_first_and_the_last_stays() {
        assert_eq!(positions(&points(&[100, 110, 300, 500, 505])), [100, 300, 500, 505]);
        let mut points = points(&[50, 200, 300]);
        assert_eq!((points.bytes(), points.least()), (30, Some(50)));
        for left in [&[200, 300][..], &[300], &[]] {
            points.drop_least();
            assert_eq!(positions(&points), left);
        }
        assert_eq!(points.least(), None);
    }

    #[test]
    fn points_past_a_change_are_forgotten() {
        let mut points = points(&[10, 20, 30]);
        points.cut(20);
        assert_eq!(positions(&points), [10, 20]);
    }
}
