//! Text to token ids and back (spec/tokenizer.md 2 and 3).

use std::borrow::Cow;
use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::{Model, NormalizedString};

use super::pretokenize::Splitter;
use super::special::{Fragment, SpecialMatcher};
use super::{PreTokenizer, SpecialToken, StreamDecoder, TokenType, Vocab, VocabSource, alphabet};
use crate::gguf::Strings;
use crate::{Error, Result};

/// How [`Tokenizer::encode`] treats special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS first and EOS last where the file asks for it (raw prompts; a rendered chat template
    /// brings its own). A BOS that is already there is not doubled.
    pub add_special: bool,
    /// Match control tokens in the text; otherwise their text is plain text.
    pub parse_special: bool,
}

/// Byte-level BPE as a model file describes it. Immutable and shareable between threads.
pub struct Tokenizer {
    vocab: Vocab,
    bpe: BPE,
    splitter: Splitter,
    /// Tokens that are always matched, and those with control tokens added.
    user_defined: SpecialMatcher,
    all_special: SpecialMatcher,
    add_bos: Option<u32>,
    add_eos: Option<u32>,
    normalize: bool,
}

impl Tokenizer {
    /// Builds the tokenizer; an error names the metadata key at fault.
    pub fn new(source: &VocabSource) -> Result<Self> {
        if source.model != "gpt2" {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.model is {:?}; only \"gpt2\" (byte-level BPE) is supported",
                source.model
            )));
        }
        let pre = PreTokenizer::from_name(source.pre.as_deref())?;
        let vocab = Vocab::new(source)?;
        let of_types = |types: &'static [TokenType]| {
            (0..).zip(source.tokens.iter()).filter_map(|(id, text)| {
                let kind = vocab.token_type(id)?;
                Some((id, std::str::from_utf8(text).ok()?)).filter(|_| types.contains(&kind))
            })
        };
        let bpe = build_bpe(
            of_types(&[TokenType::Normal, TokenType::UserDefined]),
            &source.merges,
            pre.ignores_merges(),
        )?;
        let user_defined = SpecialMatcher::new(of_types(&[TokenType::UserDefined]))?;
        let all_special = SpecialMatcher::new(of_types(&[
            TokenType::UserDefined,
            TokenType::Control,
            TokenType::Unknown,
        ]))?;
        let bos = vocab.special(SpecialToken::Bos);
        let eos = vocab.special(SpecialToken::Eos);
        Ok(Self {
            add_bos: bos.filter(|_| source.add_bos.unwrap_or(pre.adds_bos())),
            add_eos: eos.filter(|_| source.add_eos.unwrap_or(false)),
            splitter: Splitter::new(pre)?,
            normalize: pre.normalizes(),
            vocab,
            bpe,
            user_defined,
            all_special,
        })
    }

    /// Leaves text as it is, as llama.cpp does, where the model was trained on NFC.
    pub fn without_nfc(mut self) -> Self {
        self.normalize = false;
        self
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// The token ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let special = if options.parse_special { &self.all_special } else { &self.user_defined };
        let mut ids = Vec::new();
        for fragment in special.split(text) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_plain(text, &mut ids)?,
            }
        }
        if options.add_special {
            if let Some(bos) = self.add_bos.filter(|bos| ids.first() != Some(bos)) {
                ids.insert(0, bos);
            }
            ids.extend(self.add_eos);
        }
        Ok(ids)
    }

    /// The bytes that `id` prints, see [`Vocab::piece`].
    pub fn piece(&self, id: u32, special: bool) -> &[u8] {
        self.vocab.piece(id, special)
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut stream = StreamDecoder::new();
        let mut text: String = ids.iter().map(|&id| stream.push(self.piece(id, special))).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Whether `id` ends generation (spec/tokenizer.md 4).
    pub fn is_end(&self, id: u32) -> bool {
        self.vocab.end_ids().binary_search(&id).is_ok()
    }

    /// The text of the token with this role; empty if there is none.
    pub fn special_text(&self, role: SpecialToken) -> String {
        let piece = self.vocab.special(role).map(|id| self.piece(id, true));
        String::from_utf8_lossy(piece.unwrap_or_default()).into_owned()
    }

    /// Appends the ids of text without special tokens.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.splitter.split(&self.normalized(text), |piece| {
            let tokens = self.bpe.tokenize(&alphabet::from_bytes(piece.as_bytes()));
            let tokens = tokens.map_err(|e| Error::Tokenizer(e.to_string()))?;
            ids.extend(tokens.iter().map(|token| token.id));
            Ok(())
        })
    }

    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        // Every character below the first combining mark is in NFC with any neighbour.
        if !self.normalize || text.chars().all(|c| c < '\u{300}') {
            return Cow::Borrowed(text);
        }
        let mut text = NormalizedString::from(text);
        text.nfc();
        Cow::Owned(text.get().to_owned())
    }
}

/// The merging model over `tokens` (id, text in the byte alphabet). Merges of unknown tokens are
/// skipped with a warning.
fn build_bpe<'v>(
    tokens: impl Iterator<Item = (u32, &'v str)>,
    merges: &Strings,
    ignore_merges: bool,
) -> Result<BPE> {
    let ids: HashMap<&str, u32> = tokens.map(|(id, text)| (text, id)).collect();
    for byte in 0..=255 {
        if !ids.contains_key(alphabet::from_bytes(&[byte]).as_str()) {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.tokens has no token for the single byte 0x{byte:02X}"
            )));
        }
    }
    let mut known = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let merge = String::from_utf8_lossy(merge);
        // A token may itself start with a space.
        let separator = merge.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
        let Some(separator) = separator else {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.merges: merge {rank} is {merge:?}, without a separating space"
            )));
        };
        let (left, right) = (&merge[..separator], &merge[separator + 1..]);
        let all = [left, right, &[left, right].concat()];
        if all.iter().all(|text| ids.contains_key(text)) {
            known.push((left.to_owned(), right.to_owned()));
        }
    }
    if known.len() < merges.len() {
        let skipped = merges.len() - known.len();
        tracing::warn!("tokenizer.ggml.merges: skipped {skipped} merges of unknown tokens");
    }
    let vocab: tokenizers::models::bpe::Vocab =
        ids.into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
    BPE::builder()
        .vocab_and_merges(vocab, known)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|e| Error::Tokenizer(format!("tokenizer.ggml.merges: {e}")))
}
