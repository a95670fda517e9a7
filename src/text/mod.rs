//! Tokenizer, chat template, streaming decode, stop rules.

mod alphabet;
mod jinja;
mod message;
mod pretokenize;
mod python;
mod source;
mod special;
mod stop;
mod stream;
mod strftime;
mod template;
mod tokenizer;
mod vocab;

pub use message::{Content, FunctionCall, Message, ToolCall};
pub use pretokenize::PreTokenizer;
pub use source::{SpecialToken, VocabSource};
pub use stop::{StopMatcher, StopStep};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::{TokenType, Vocab};
