//! A model's thinking apart from its answer (spec/tokenizer.md 5.4, for the terminal).

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Whether the prompt leaves the model in the midst of thinking.
pub(super) fn is_open(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Splits `text`, which follows a prompt with its thinking `open` or not, into thinking and answer.
pub(super) fn split(open: bool, text: &str) -> (Option<&str>, &str) {
    let tagged = text.trim_start().strip_prefix(OPEN);
    let Some(thinking) = tagged.or(open.then_some(text)) else { return (None, text) };
    let (thinking, answer) = thinking.split_once(CLOSE).unwrap_or((thinking, ""));
    (Some(thinking.trim_matches('\n')), answer.trim_start_matches('\n'))
}

/// Lets only the answer of a streamed text through.
pub(super) struct AnswerOnly {
    open: bool,
    text: String,
    /// Bytes of the answer let through.
    shown: usize,
}

impl AnswerOnly {
    pub(super) fn new(open: bool) -> Self {
        Self { open, text: String::new(), shown: 0 }
    }

    /// Takes the next piece; returns what can be shown now.
    pub(super) fn push(&mut self, piece: &str) -> &str {
        self.text.push_str(piece);
        let start = self.text.trim_start();
        if !self.open && OPEN.starts_with(start) {
            return "";
        }
        let answer = split(self.open, &self.text).1;
        let new = &answer[self.shown..];
        self.shown = answer.len();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_is_split_off() {
        assert_eq!(split(true, "hm\n</think>\n\nYes."), (Some("hm"), "Yes."));
        assert_eq!(split(false, "\n<think>\nhm\n</think>\n\nYes."), (Some("hm"), "Yes."));
        assert_eq!(split(true, "still at it"), (Some("still at it"), ""));
        assert_eq!(split(false, "Yes </think>."), (None, "Yes </think>."));
        assert!(is_open("<|im_start|>assistant\n<think>\n"));
        assert!(!is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    }

    #[test]
    fn a_stream_shows_the_same_answer_however_it_is_cut() {
        for (open, text) in [
            (true, "hm\n</think>\n\nYes.\nNo."),
            (false, " <think>hm</think>Yes."),
            (false, "<b>Yes</b>"),
            (true, "never ends"),
        ] {
            let expected = split(open, text).1;
            for size in 1..text.len() {
                let mut stream = AnswerOnly::new(open);
                let pieces = text.as_bytes().chunks(size);
                let shown: String = pieces
                    .map(|piece| stream.push(str::from_utf8(piece).unwrap()).to_owned())
                    .collect();
                assert_eq!(shown, expected, "{text:?} by {size}");
            }
        }
    }
}
