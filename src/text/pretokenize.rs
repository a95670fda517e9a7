//! Splitting text into the pieces that BPE merges within (spec/tokenizer.md 2.3).

use tokenizers::utils::SysRegex;

use crate::{Error, Result};

/// The named splitting rules that we know. Their name in the file also decides a few other habits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// `qwen35`: marks belong to words.
    Qwen35,
    /// `qwen2`: Qwen 2, 2.5 and 3.
    Qwen2,
    /// `llama-bpe`: Llama 3; digits in threes.
    LlamaBpe,
}

impl PreTokenizer {
    /// Looks up `tokenizer.ggml.pre`. A missing or unknown name is an error: a wrong split degrades
    /// the model without any visible failure.
    pub fn from_name(name: Option<&str>) -> Result<Self> {
        match name {
            Some("qwen35") => Ok(Self::Qwen35),
            Some("qwen2") => Ok(Self::Qwen2),
            Some("llama-bpe" | "llama3" | "llama-v3") => Ok(Self::LlamaBpe),
            Some(other) => Err(Error::Tokenizer(format!(
                "tokenizer.ggml.pre is {other:?}, a pre-tokenizer we do not know (known: qwen35, qwen2, llama-bpe)"
            ))),
            None => Err(Error::Tokenizer(
                "the file has no tokenizer.ggml.pre, so the pre-tokenizer is unknown".into(),
            )),
        }
    }

    /// Whether the model was trained on text in NFC (no key in the file says so).
    pub fn normalizes(self) -> bool {
        self != Self::LlamaBpe
    }

    /// Whether a piece that is a token as a whole skips the merges.
    pub fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether BOS is put first when the file has no `add_bos_token`.
    pub fn adds_bos(self) -> bool {
        self == Self::LlamaBpe
    }

    /// The pattern, without the look-ahead of its last but one alternative, `\s+(?!\S)`.
    fn pattern(self) -> String {
        let (word, number) = match self {
            Self::Qwen35 => (r"\p{L}\p{M}", r"\p{N}"),
            Self::Qwen2 => (r"\p{L}", r"\p{N}"),
            Self::LlamaBpe => (r"\p{L}", r"\p{N}{1,3}"),
        };
        [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            &format!(r"[^\r\n\p{{L}}\p{{N}}]?[{word}]+"),
            number,
            &format!(r" ?[^\s{word}\p{{N}}]+[\r\n]*"),
            r"\s*[\r\n]+",
            r"\s+",
        ]
        .join("|")
    }
}

/// A compiled [`PreTokenizer`].
///
/// The look-ahead `\s+(?!\S)` ("leave the last blank to the next word") is done by hand. With it the
/// regex would backtrack, and the crate's own `Split` silently stops at the backtracking limit, which
/// a long run of blanks reaches; without it matching is linear.
pub(super) struct Splitter(SysRegex);

impl Splitter {
    pub(super) fn new(pre: PreTokenizer) -> Result<Self> {
        SysRegex::new(&pre.pattern()).map(Self).map_err(|e| Error::Tokenizer(e.to_string()))
    }

    /// Calls `emit` with the pieces of `text` in order; they cover it without gaps.
    pub(super) fn split<'t>(
        &self,
        text: &'t str,
        mut emit: impl FnMut(&'t str) -> Result<()>,
    ) -> Result<()> {
        let mut rest = text;
        'restart: while !rest.is_empty() {
            let mut done = 0;
            for (start, end) in self.0.find_iter(rest) {
                if start != done {
                    break;
                }
                let piece = &rest[start..end];
                if let Some(kept) = end_of_blanks(piece).filter(|_| end < rest.len()) {
                    emit(&piece[..kept])?;
                    rest = &rest[start + kept..];
                    continue 'restart;
                }
                emit(piece)?;
                done = end;
            }
            if done != rest.len() {
                return Err(Error::Tokenizer("the pre-tokenizer left text unsplit".into()));
            }
            break;
        }
        Ok(())
    }
}

/// For a piece of two or more blanks without a line end (only the last alternative ends in a blank
/// that is not one): where its last blank starts.
fn end_of_blanks(piece: &str) -> Option<usize> {
    let (last, blank) = piece.char_indices().next_back()?;
    (last > 0 && blank.is_whitespace() && blank != '\n' && blank != '\r').then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(pre: PreTokenizer, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let splitter = Splitter::new(pre).unwrap();
        let result = splitter.split(text, |piece| {
            pieces.push(piece.to_owned());
            Ok(())
        });
        result.unwrap();
        pieces
    }

    const ALL: [PreTokenizer; 3] =
        [PreTokenizer::Qwen35, PreTokenizer::Qwen2, PreTokenizer::LlamaBpe];

    /// The examples of spec/tokenizer.md 2.3.
    #[test]
    fn splits_the_examples_of_the_spec() {
        let qwen: [(&str, &[&str]); 10] = [
            (
                "Hello, y'all! I'M 12345",
                &["Hello", ",", " y", "'all", "!", " I", "'M", " ", "1", "2", "3", "4", "5"],
            ),
            ("a  b   c", &["a", " ", " b", "  ", " c"]),
            (" \n \n\tx", &[" \n \n", "\tx"]),
            ("x=1;\n\n  y", &["x", "=", "1", ";\n\n", " ", " y"]),
            ("½ Ⅷ 3.14", &["½", " ", "Ⅷ", " ", "3", ".", "1", "4"]),
            ("\u{3000}全角", &["\u{3000}全角"]),
            ("don't\r\n\r\n!", &["don", "'t", "\r\n\r\n", "!"]),
            ("(a)[b]", &["(a", ")[", "b", "]"]),
            (" 'S 's", &[" '", "S", " '", "s"]),
            ("", &[]),
        ];
        for (text, pieces) in qwen {
            assert_eq!(split(PreTokenizer::Qwen35, text), pieces, "qwen35: {text:?}");
            assert_eq!(split(PreTokenizer::Qwen2, text), pieces, "qwen2: {text:?}");
        }
        let llama = split(PreTokenizer::LlamaBpe, "y'all! I'M 12345");
        assert_eq!(llama, ["y", "'all", "!", " I", "'M", " ", "123", "45"]);
        assert_eq!(split(PreTokenizer::LlamaBpe, "3.14"), ["3", ".", "14"]);

        let accents = "e\u{301}te\u{301}";
        assert_eq!(split(PreTokenizer::Qwen35, accents), [accents]);
        for pre in [PreTokenizer::Qwen2, PreTokenizer::LlamaBpe] {
            assert_eq!(split(pre, accents), ["e", "\u{301}te", "\u{301}"]);
        }
    }

    #[test]
    fn long_runs_split_as_short_ones() {
        let n = 3_000_000;
        for pre in ALL {
            for blank in [" ", "\t", "\u{3000}"] {
                let run = blank.repeat(n);
                assert_eq!(split(pre, &run), [run.as_str()]);
                let pieces = split(pre, &format!("{run}1"));
                assert_eq!(pieces, [&run[blank.len()..], blank, "1"]);
                let pieces = split(pre, &format!("{run}\n{run}."));
                assert_eq!(pieces[0].len(), run.len() + 1);
                assert_eq!(pieces[1].len(), run.len() - blank.len());
            }
            for text in ["a", "!", "\n"] {
                assert_eq!(split(pre, &text.repeat(n)).len(), 1);
            }
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        let error = |name| PreTokenizer::from_name(name).unwrap_err().to_string();
        assert!(error(Some("default")).contains("\"default\""));
        assert!(error(Some("gpt-2")).contains("\"gpt-2\""));
        assert!(error(None).contains("no tokenizer.ggml.pre"));
        for alias in ["llama-bpe", "llama3", "llama-v3"] {
            assert_eq!(PreTokenizer::from_name(Some(alias)).unwrap(), PreTokenizer::LlamaBpe);
        }
    }

    proptest! {
        /// The pattern as published, with its look-ahead, in the same regex engine.
        #[test]
        fn equals_the_pattern_with_look_ahead(
            text in r"([ \t\n\r\u{3000}]{0,4}(['!-/½३5a-dſK\p{L}\p{M}\p{N}\p{S}]|'[sStTrRvVmMlLdD]|\PC)){0,12}[ \n]{0,3}"
        ) {
            for pre in ALL {
                let published = format!(r"{}(?!\S)|\s+", pre.pattern());
                let regex = SysRegex::new(&published).unwrap();
                let expected: Vec<_> =
                    regex.find_iter(&text).map(|(start, end)| &text[start..end]).collect();
                prop_assert_eq!(split(pre, &text), expected);
            }
        }
    }
}
