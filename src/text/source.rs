//! What a model file says about its tokenizer (spec/tokenizer.md 1).

use crate::Result;
use crate::gguf::{Gguf, Strings, Value};

/// What a model file says about its tokenizer, as plain data (spec/tokenizer.md 1).
#[derive(Clone, Debug, Default)]
pub struct VocabSource {
    /// `tokenizer.ggml.model`; only `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// `tokenizer.ggml.pre`: name of the pre-tokenizer.
    pub pre: Option<String>,
    /// Token texts by id; normal tokens in the byte alphabet, others raw.
    pub tokens: Strings,
    /// GGUF token types by id, 1 to 6; without them all tokens are normal.
    pub token_types: Option<Vec<i32>>,
    /// `"A B"` by rank.
    pub merges: Strings,
    /// Ids of the tokens with a role.
    pub special: Vec<(SpecialToken, u32)>,
    /// `tokenizer.ggml.eos_token_ids`: further ids that end generation.
    pub eos_token_ids: Vec<i32>,
    /// Whether BOS is put before a prompt; the pre-tokenizer decides where the file does not.
    pub add_bos: Option<bool>,
    /// Whether EOS is put after a prompt; no by default.
    pub add_eos: Option<bool>,
    /// `tokenizer.chat_template`: Jinja source.
    pub chat_template: Option<String>,
}

impl VocabSource {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// A key is missing or of the wrong type, or `scores` are not one a token.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let metadata = gguf.metadata();
        let text = |key| Ok(metadata.optional::<&str>(key)?.map(str::to_owned));
        let tokens = metadata.require::<&Strings>("tokenizer.ggml.tokens")?;
        if let Some(Value::Array(scores)) = metadata.get(SCORES)
            && scores.len() != tokens.len()
        {
            let fault = format!("has {} entries for {} tokens", scores.len(), tokens.len());
            return Err(metadata.error(SCORES, fault));
        }
        let mut special = Vec::new();
        for role in SpecialToken::ALL {
            special.extend(metadata.optional(role.key())?.map(|id| (role, id)));
        }
        Ok(Self {
            model: metadata.require::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?,
            tokens: tokens.clone(),
            token_types: metadata.optional("tokenizer.ggml.token_type")?,
            merges: metadata.require::<&Strings>("tokenizer.ggml.merges")?.clone(),
            special,
            eos_token_ids: metadata.optional("tokenizer.ggml.eos_token_ids")?.unwrap_or_default(),
            add_bos: metadata.optional("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.optional("tokenizer.ggml.add_eos_token")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }
}

/// Roles that a file gives to token ids, each by a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the keys")]
pub enum SpecialToken {
    Bos,
    Eos,
    Eot,
    Eom,
    Unknown,
    Padding,
    FimPre,
    FimSuf,
    FimMid,
    FimPad,
    FimRep,
    FimSep,
}

impl SpecialToken {
    /// All roles.
    pub const ALL: [Self; 12] = [
        Self::Bos,
        Self::Eos,
        Self::Eot,
        Self::Eom,
        Self::Unknown,
        Self::Padding,
        Self::FimPre,
        Self::FimSuf,
        Self::FimMid,
        Self::FimPad,
        Self::FimRep,
        Self::FimSep,
    ];

    /// The metadata key that holds the id.
    pub fn key(self) -> &'static str {
        match self {
            Self::Bos => "tokenizer.ggml.bos_token_id",
            Self::Eos => "tokenizer.ggml.eos_token_id",
            Self::Eot => "tokenizer.ggml.eot_token_id",
            Self::Eom => "tokenizer.ggml.eom_token_id",
            Self::Unknown => "tokenizer.ggml.unknown_token_id",
            Self::Padding => "tokenizer.ggml.padding_token_id",
            Self::FimPre => "tokenizer.ggml.fim_pre_token_id",
            Self::FimSuf => "tokenizer.ggml.fim_suf_token_id",
            Self::FimMid => "tokenizer.ggml.fim_mid_token_id",
            Self::FimPad => "tokenizer.ggml.fim_pad_token_id",
            Self::FimRep => "tokenizer.ggml.fim_rep_token_id",
            Self::FimSep => "tokenizer.ggml.fim_sep_token_id",
        }
    }

    /// Whether a token of this role ends generation.
    pub(super) fn ends_generation(self) -> bool {
        use SpecialToken::{Eom, Eos, Eot, FimPad, FimRep, FimSep};
        matches!(self, Eos | Eot | Eom | FimPad | FimRep | FimSep)
    }
}
