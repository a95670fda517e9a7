//! What the demo model is known to answer: `models/selftest.json`, which `models/demo/selftest.py`
//! made and describes.

use crate::{
    Error, Result,
    text::{EncodeOptions, Tokenizer},
};
use serde::Deserialize;

/// Prompts and their answers.
#[derive(Clone, Debug, Deserialize)]
pub struct Stored {
    /// Short prompts.
    pub prompts: Vec<Prompt>,
    /// Facts to be found in long texts, by rising depth.
    pub needles: Vec<Needle>,
}

/// A short prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Prompt {
    /// What it is about.
    pub name: String,
    /// The prompt, without a template.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// What follows.
    #[serde(rename = "q8_0")]
    pub answer: Answer,
}

/// What the model answers, computed in f32 on a CPU.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// The likeliest tokens, one after the other.
    pub greedy: Vec<u32>,
    /// How many of them come before the first near tie.
    pub safe: usize,
    /// Ids and logits of the likeliest tokens after the last one of the prompt.
    pub top5_last: Vec<(u32, f32)>,
}

/// A fact in a long text, and a question about it.
#[derive(Clone, Debug, Deserialize)]
pub struct Needle {
    /// First line of the filler.
    first_line: usize,
    /// Lines of it, starting over at its end.
    lines: usize,
    /// What goes between them.
    inserts: Vec<Insert>,
    /// The chat turn that ends the prompt.
    question: String,
    /// The right answer.
    pub answer: String,
    /// Tokens of the prompt.
    pub n_tokens: usize,
    /// Of the prompt's ids, and what follows them; not known of texts made up here.
    #[serde(flatten)]
    pub known: Option<Known>,
}

/// What is known of the ids of a needle's prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Known {
    /// CRC-32 of the ids as little-endian u32.
    pub crc32: u32,
    /// What follows.
    #[serde(rename = "q8_0")]
    pub answer: Answer,
}

#[derive(Clone, Debug, Deserialize)]
struct Insert {
    /// Line of the filler, counted from the first one taken, that it stands before.
    before: usize,
    sentence: String,
}

/// Lines of held-out text.
const FILLER: &str = include_str!("../../models/selftest-filler.txt");

impl Stored {
    /// Reads what is part of the program.
    ///
    /// # Errors
    /// None unless the build is broken.
    pub fn open() -> Result<Self> {
        serde_json::from_str(include_str!("../../models/selftest.json"))
            .map_err(|e| Error::Model(format!("the demo model's self-test data: {e}")))
    }
}

/// Text of about as many tokens as `tokens`, or more, for models with a vocabulary of their own.
pub(super) fn filler(tokenizer: &Tokenizer, tokens: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for line in FILLER.lines().cycle() {
        ids.extend(encode(tokenizer, line)?);
        if ids.len() >= tokens {
            break;
        }
    }
    ids.truncate(tokens);
    Ok(ids)
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true })
}

impl Needle {
    /// The prompt's ids.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when they are not those that are known.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let filler: Vec<&str> = FILLER.lines().collect();
        let mut parts = Vec::new();
        for line in 0..self.lines {
            let here = self.inserts.iter().filter(|insert| insert.before == line);
            parts.extend(here.map(|insert| insert.sentence.as_str()));
            parts.push(filler[(self.first_line + line) % filler.len()]);
        }
        let ids = encode(tokenizer, &(parts.join(" ") + &self.question))?;
        match &self.known {
            Some(known) if ids.len() != self.n_tokens || crc32(&ids) != known.crc32 => {
                Err(Error::Tokenizer(format!(
                    "a text of {} tokens became {} others",
                    self.n_tokens,
                    ids.len()
                )))
            }
            _ => Ok(ids),
        }
    }

    /// The same facts and question in another text, of at most `depth` tokens.
    ///
    /// # Errors
    /// None for a tokenizer that knows all bytes.
    pub fn at(&self, depth: usize, tokenizer: &Tokenizer) -> Result<Self> {
        let size = |text: &str| encode(tokenizer, text).map(|ids| ids.len());
        let filler: Vec<usize> =
            FILLER.lines().map(|line| size(&format!(" {line}"))).collect::<Result<_>>()?;
        let first_line = 3 * depth / 64 % filler.len();
        let mut n_tokens = size(&self.question)?;
        for insert in &self.inserts {
            n_tokens += size(&format!(" {}", insert.sentence))?;
        }
        let mut lines = 0;
        for tokens in filler.iter().cycle().skip(first_line) {
            if n_tokens + tokens > depth {
                break;
            }
            n_tokens += tokens;
            lines += 1;
        }
        let moved = |insert: &Insert| Insert {
            before: insert.before * lines / self.lines,
            ..insert.clone()
        };
        let inserts = self.inserts.iter().map(moved).collect();
        Ok(Self { first_line, lines, inserts, n_tokens, known: None, ..self.clone() })
    }
}

/// The usual CRC-32 (IEEE 802.3, reflected) of the ids' bytes.
fn crc32(ids: &[u32]) -> u32 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{demo, text::VocabSource};

    fn tokenizer() -> Tokenizer {
        Tokenizer::new(&VocabSource::from_gguf(&demo::open().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        // "12345678"
        assert_eq!(crc32(&[0x3433_3231, 0x3837_3635]), 0x9ae0_daaf);
    }

    #[test]
    fn texts_are_rebuilt_and_others_refused() {
        let tokenizer = tokenizer();
        for mut needle in Stored::open().unwrap().needles {
            assert_eq!(needle.ids(&tokenizer).unwrap().len(), needle.n_tokens);
            needle.first_line += 1;
            let e = needle.ids(&tokenizer).unwrap_err().to_string();
            assert!(e.contains(&format!("{} tokens", needle.n_tokens)), "{e}");
        }
    }

    #[test]
    fn other_depths_keep_the_facts_and_fill_the_text() {
        let tokenizer = tokenizer();
        let stored = &Stored::open().unwrap().needles[0];
        for depth in [256, 3000, 50_000] {
            let needle = stored.at(depth, &tokenizer).unwrap();
            let ids = needle.ids(&tokenizer).unwrap();
            assert!(ids.len() <= depth && ids.len() + 600 > depth, "{} of {depth}", ids.len());
            let text = tokenizer.decode(&ids, true);
            for insert in &stored.inserts {
                assert!(text.contains(&insert.sentence), "{}", insert.sentence);
            }
            assert!(text.ends_with(&stored.question));
        }
    }
}
