//! Grammars that hold a model to a form: a JSON schema, calls of tools, or what a client writes
//! in the Lark dialect of `llguidance`.

use serde_json::{Map, Value, json};

use super::call_grammar::{self, CallForm};
use crate::{Error, Result};

/// Blanks where JSON allows them: a small model would fill pages with them otherwise.
const BLANKS: &str = r"[ \n][ \t\n]{0,20}";

/// What an answer has to look like, as Lark rules without `start`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grammar {
    rules: String,
    /// Whether the rules name their own `start`.
    whole: bool,
}

impl Grammar {
    /// JSON that a schema describes.
    ///
    /// # Errors
    /// [`Error::Usage`] if `schema` is neither an object nor a boolean.
    pub fn json(schema: &Value) -> Result<Self> {
        Ok(Self { rules: format!("answer: %json {}\n", guided(schema)?), whole: false })
    }

    /// One call of a function of `tools` (a list as in OpenAI's API), or several, in a form that
    /// [`super::ReplyParser`] reads: `form`, but JSON for parameters that tags cannot hold. With a
    /// `name`, of that function.
    ///
    /// # Errors
    /// [`Error::Usage`] if no function has that name or its parameters are no schema.
    pub fn calls(tools: &Value, name: Option<&str>, several: bool, form: CallForm) -> Result<Self> {
        Ok(Self { rules: call_grammar::rules(tools, name, several, form)?, whole: false })
    }

    /// A grammar of a client in the Lark dialect of `llguidance`.
    ///
    /// # Errors
    /// [`Error::Usage`] for llama.cpp's GBNF.
    pub fn lark(text: &str) -> Result<Self> {
        if text.contains("::=") {
            return Err(Error::Usage(
                "is GBNF, which this server does not read: write it in llguidance's Lark syntax \
                 (start: ...) or give a JSON schema"
                    .into(),
            ));
        }
        Ok(Self { rules: text.to_owned(), whole: true })
    }

    /// What either of both allows.
    ///
    /// # Errors
    /// [`Error::Usage`] if one is a client's own.
    pub fn or(self, other: Self) -> Result<Self> {
        if self.whole || other.whole {
            return Err(Error::Usage("a grammar does not go with tools".into()));
        }
        let rules = self.rules.replacen("answer:", "first:", 1)
            + &other.rules.replacen("answer:", "second:", 1);
        Ok(Self { rules: rules + "answer: first | second\n", whole: false })
    }

    /// The text that `llguidance` compiles; after thinking, line breaks may come first.
    pub(super) fn text(&self, after_thinking: bool) -> String {
        match (self.whole, after_thinking) {
            (true, _) => self.rules.clone(),
            (false, false) => format!("start: answer\n{}", self.rules),
            (false, true) => format!("start: BREAKS? answer\nBREAKS: /\\n{{1,2}}/\n{}", self.rules),
        }
    }
}

/// `schema` with the settings of the compiler.
pub(super) fn guided(schema: &Value) -> Result<Value> {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => Map::from_iter([("not".into(), json!({}))]),
        _ => return Err(Error::Usage("is not a JSON schema, which is an object".into())),
    };
    // The choices of `oneOf` that fit a text are seldom several.
    let settings = json!({"whitespace_pattern": BLANKS, "coerce_one_of": true});
    schema.insert("x-guidance".into(), settings);
    Ok(schema.into())
}
