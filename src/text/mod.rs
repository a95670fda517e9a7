//! Tokenizer, chat template, streaming decode, stop rules, replies taken apart or held to a
//! grammar.

mod alphabet;
mod call_grammar;
mod constraint;
mod grammar;
mod jinja;
mod message;
mod pretokenize;
mod python;
mod reply;
mod source;
mod special;
mod stop;
mod stream;
pub(crate) mod strftime;
mod template;
mod tokenizer;
mod tool_call;
mod vocab;

pub use call_grammar::CallForm;
pub use constraint::{Constraint, Constraints, Thinking};
pub use grammar::Grammar;
pub use message::{Content, FunctionCall, Message, ToolCall};
pub use pretokenize::PreTokenizer;
pub use reply::{ReplyOptions, ReplyParser, ReplyPart, opens_thinking};
pub use source::{SpecialToken, VocabSource};
pub use stop::{StopMatcher, StopStep};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use tool_call::ParsedCall;
pub use vocab::{TokenType, Vocab};
