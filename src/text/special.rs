//! Finding special tokens in text (spec/tokenizer.md 2.5).

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{Error, Result};

/// One part of a text: plain, or a special token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Matches a set of special tokens: leftmost, then longest.
pub(super) struct SpecialMatcher {
    automaton: AhoCorasick,
    /// Token id by pattern.
    ids: Vec<u32>,
}

impl SpecialMatcher {
    /// From (id, text) pairs; empty texts never match.
    pub(super) fn new<'v>(tokens: impl Iterator<Item = (u32, &'v str)>) -> Result<Self> {
        let (ids, texts): (Vec<_>, Vec<_>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|e| Error::Tokenizer(format!("special tokens: {e}")))?;
        Ok(Self { automaton, ids })
    }

    /// The parts of `text` in order, none empty.
    pub(super) fn split<'t>(&self, text: &'t str) -> impl Iterator<Item = Fragment<'t>> {
        let mut matches = self.automaton.find_iter(text);
        let mut pending = None;
        let mut done = 0;
        std::iter::from_fn(move || {
            if let Some(id) = pending.take() {
                return Some(Fragment::Token(id));
            }
            let Some(found) = matches.next() else {
                let rest = &text[done..];
                done = text.len();
                return (!rest.is_empty()).then_some(Fragment::Text(rest));
            };
            let before = &text[done..found.start()];
            let id = self.ids[found.pattern().as_usize()];
            done = found.end();
            if before.is_empty() {
                return Some(Fragment::Token(id));
            }
            pending = Some(id);
            Some(Fragment::Text(before))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    #[test]
    fn splits_leftmost_longest() {
        let matcher =
            SpecialMatcher::new([(1, "<a>"), (2, "<a><b>"), (3, "b"), (4, "")].into_iter())
                .unwrap();
        let split = |text| matcher.split(text).collect::<Vec<_>>();
        assert_eq!(split("x<a>b"), [Text("x"), Token(1), Token(3)]);
        assert_eq!(split("<a><b>é<a><a>"), [Token(2), Text("é"), Token(1), Token(1)]);
        assert_eq!(split("<a"), [Text("<a")]);
        assert_eq!(split(""), []);
        let none = SpecialMatcher::new(std::iter::empty()).unwrap();
        assert_eq!(none.split("<a>").collect::<Vec<_>>(), [Text("<a>")]);
    }
}
