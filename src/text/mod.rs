//! Tokenizer, chat template, streaming decode, stop rules.

mod alphabet;
mod pretokenize;
mod special;
mod stop;
mod stream;
mod tokenizer;
mod vocab;

pub use pretokenize::PreTokenizer;
pub use stop::{StopMatcher, StopStep};
pub use stream::StreamDecoder;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::{SpecialToken, TokenType, Vocab, VocabSource};
