//! Where a prompt is stopped at to take checkpoints (spec/cli-and-server.md 4.5): where later
//! prompts are likely to part from it.

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
pub(crate) fn cuts(
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
}
