//! The checked vocabulary: what each token id is and prints (spec/tokenizer.md 1, 3, 4).

use super::alphabet;
use super::source::{SpecialToken, VocabSource};
use crate::{Error, Result};

/// How a token is matched and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Bytes in the byte alphabet; made by merges.
    Normal,
    /// Stands for text without a token; treated as [`TokenType::Control`].
    Unknown,
    /// Matched in text on request, printed on request.
    Control,
    /// Always matched in text, always printed.
    UserDefined,
    /// Filler: never matched, prints nothing.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl TokenType {
    fn from_gguf(value: i32) -> Option<Self> {
        Some(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Texts that end generation in the families we know, whatever the file's keys say.
const END_TEXTS: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
];

/// Token types, printed bytes and roles of all ids.
#[derive(Clone, Debug)]
pub struct Vocab {
    types: Vec<TokenType>,
    /// What the tokens print when special tokens are shown, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    special: Vec<(SpecialToken, u32)>,
    /// Sorted ids that end generation.
    end_ids: Vec<u32>,
}

impl Vocab {
    /// Checks `source`; an error names the key that is wrong.
    pub fn new(source: &VocabSource) -> Result<Self> {
        let types = token_types(source)?;
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(types.len());
        for (id, (text, &kind)) in source.tokens.iter().zip(&types).enumerate() {
            append_piece(&mut bytes, id, text, kind)?;
            ends.push(bytes.len());
        }
        for &(role, id) in &source.special {
            check_id(role.key(), i64::from(id), types.len())?;
        }
        let mut vocab =
            Self { types, bytes, ends, special: source.special.clone(), end_ids: Vec::new() };
        vocab.end_ids = vocab.find_end_ids(&source.eos_token_ids)?;
        Ok(vocab)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The type of `id`, if it is in the vocabulary.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(usize::try_from(id).ok()?).copied()
    }

    /// The id with this role.
    pub fn special(&self, role: SpecialToken) -> Option<u32> {
        self.special.iter().find(|(other, _)| *other == role).map(|&(_, id)| id)
    }

    /// The ids that end generation, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The bytes that `id` prints; control tokens only with `special`. Ids outside of the vocabulary
    /// (padding rows of the output matrix) print nothing.
    pub fn piece(&self, id: u32, special: bool) -> &[u8] {
        match self.token_type(id) {
            None => &[],
            Some(TokenType::Control | TokenType::Unknown) if !special => &[],
            Some(_) => {
                let id = id as usize;
                let start = if id == 0 { 0 } else { self.ends[id - 1] };
                &self.bytes[start..self.ends[id]]
            }
        }
    }

    fn find_end_ids(&self, listed: &[i32]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for &id in listed {
            ids.push(check_id("tokenizer.ggml.eos_token_ids", i64::from(id), self.len())?);
        }
        let with_role = self.special.iter().filter(|(role, _)| role.ends_generation());
        ids.extend(with_role.map(|&(_, id)| id));
        let by_text = (0..).zip(&self.types).filter(|&(id, kind)| {
            matches!(kind, TokenType::Control | TokenType::UserDefined)
                && END_TEXTS.iter().any(|text| text.as_bytes() == self.piece(id, true))
        });
        ids.extend(by_text.map(|(id, _)| id));
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn token_types(source: &VocabSource) -> Result<Vec<TokenType>> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let count = source.tokens.len();
    let Some(types) = &source.token_types else {
        return Ok(vec![TokenType::Normal; count]);
    };
    if types.len() != count {
        return Err(Error::Tokenizer(format!(
            "{KEY} has {} entries, but there are {count} tokens",
            types.len()
        )));
    }
    let convert = |(id, &value)| {
        TokenType::from_gguf(value).ok_or_else(|| {
            Error::Tokenizer(format!("{KEY} of token {id} is {value}, expected 1 to 6"))
        })
    };
    types.iter().enumerate().map(convert).collect()
}

/// `id` as a token id, or an error that names `key`.
fn check_id(key: &str, id: i64, count: usize) -> Result<u32> {
    let in_range = u32::try_from(id).ok().filter(|&id| (id as usize) < count);
    in_range.ok_or_else(|| {
        Error::Tokenizer(format!("{key} names token {id}, but there are only {count} tokens"))
    })
}

/// Appends what the token prints when special tokens are shown.
fn append_piece(bytes: &mut Vec<u8>, id: usize, text: &[u8], kind: TokenType) -> Result<()> {
    match kind {
        TokenType::Normal => match std::str::from_utf8(text) {
            Ok(text) => {
                for character in text.chars() {
                    match alphabet::byte_of(character) {
                        Some(byte) => bytes.push(byte),
                        None => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
            }
            Err(_) => bytes.extend(text),
        },
        TokenType::Unknown | TokenType::Control | TokenType::UserDefined => bytes.extend(text),
        TokenType::Unused => {}
        TokenType::Byte => {
            let hex = std::str::from_utf8(text).ok().and_then(|text| {
                let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
                (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
            });
            bytes.push(hex.ok_or_else(|| {
                Error::Tokenizer(format!(
                    "tokenizer.ggml.tokens: byte token {id} is {:?}, expected <0xNN>",
                    String::from_utf8_lossy(text)
                ))
            })?);
        }
    }
    Ok(())
}
