//! Grammars that hold a model to a form: a JSON schema, calls of tools, or what a client writes
//! in the Lark dialect of `llguidance`.

use serde_json::{Map, Value, json};

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

    /// One call of a function of `tools` (a list as in OpenAI's API), or several, in the JSON form
    /// that [`super::ReplyParser`] reads. With a `name`, of that function.
    ///
    /// # Errors
    /// [`Error::Usage`] if no function has that name or its parameters are no schema.
    pub fn calls(tools: &Value, name: Option<&str>, several: bool) -> Result<Self> {
        let functions = tools.as_array().into_iter().flatten().filter_map(|t| t.get("function"));
        let named = |function: &&Value| match name {
            Some(name) => function["name"] == name,
            None => true,
        };
        let call = |function: &Value| {
            let any = json!({"type": "object"});
            let parameters = function.get("parameters").filter(|p| !p.is_null()).unwrap_or(&any);
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = functions.filter(named).map(call).collect();
        if calls.is_empty() {
            let name = name.unwrap_or_default();
            return Err(Error::Usage(format!("there is no function {name:?} among the tools")));
        }
        // References in parameters mean the parameters: each is a grammar of its own.
        let mut rules =
            String::from(if several { "answer: call (\"\\n\" call)*\n" } else { "answer: call\n" });
        let of = |i| format!("call_{i}");
        let all: Vec<_> = (0..calls.len()).map(of).collect();
        rules += &format!(
            "call: \"<tool_call>\\n\" function \"\\n</tool_call>\"\nfunction: {}\n",
            all.join(" | ")
        );
        for (i, call) in calls.iter().enumerate() {
            rules += &format!("{}: %json {}\n", of(i), guided(&lifted(call))?);
        }
        Ok(Self { rules, whole: false })
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
fn guided(schema: &Value) -> Result<Value> {
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

/// Definitions of a function's parameters at the top of its call, where references look for them.
fn lifted(call: &Value) -> Value {
    let mut call = call.clone();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) =
            call.pointer_mut("/properties/arguments").and_then(|a| a.as_object_mut()?.remove(key))
        {
            call[key] = definitions;
        }
    }
    call
}
