//! Chat messages, and what is changed about them before a template sees them
//! (spec/tokenizer.md 5.2).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// One chat message in the form of OpenAI's API. Unknown fields are kept for the template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said; may be missing beside tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// An assistant's thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Functions that an assistant calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Which call a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker or tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Typed parts, `{"type": "text", "text": ...}`.
    Parts(Vec<Value>),
}

/// A function call of an assistant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The function and its arguments.
    pub function: FunctionCall,
    /// `id`, `type` and all other fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The function of a [`ToolCall`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// An object; clients of OpenAI's API send it as a string of JSON.
    #[serde(default)]
    pub arguments: Value,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        let content = Some(Content::Text(text.into()));
        Self { role: role.into(), content, ..Self::default() }
    }
}

impl Content {
    /// The text. Parts are joined without a separator, as templates that take parts do themselves,
    /// so every template gets text.
    fn into_text(self) -> Result<String> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let mut joined = String::new();
        for part in &parts {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let text = part.get("text").and_then(Value::as_str).filter(|_| kind == "text");
            joined.push_str(text.ok_or_else(|| {
                Error::Template(format!("a content part of type {kind:?} is not text"))
            })?);
        }
        Ok(joined)
    }
}

/// The messages as templates expect them: `developer` becomes `system`, leading system messages
/// become one, content is text, `reasoning` becomes `reasoning_content`, arguments are objects.
pub(super) fn prepare(messages: &[Message]) -> Result<Vec<Message>> {
    let mut prepared: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let message = prepare_one(message.clone())?;
        match prepared.as_mut_slice() {
            [first] if first.role == "system" && message.role == "system" => {
                let texts = [first.content.take(), message.content];
                let texts = texts.into_iter().flatten().map(Content::into_text);
                let joined = texts.collect::<Result<Vec<_>>>()?.join("\n\n");
                first.content = Some(Content::Text(joined));
            }
            _ => prepared.push(message),
        }
    }
    Ok(prepared)
}

fn prepare_one(mut message: Message) -> Result<Message> {
    if message.role == "developer" {
        message.role = "system".into();
    }
    if message.reasoning_content.is_none()
        && let Some(Value::String(reasoning)) = message.extra.get("reasoning")
    {
        message.reasoning_content = Some(reasoning.clone());
    }
    message.content = match message.content {
        Some(content) => Some(Content::Text(content.into_text()?)),
        None => None,
    };
    for call in message.tool_calls.iter_mut().flatten() {
        let function = &mut call.function;
        function.arguments = match std::mem::take(&mut function.arguments) {
            Value::Null => Value::Object(Map::new()),
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::Null),
            other => other,
        };
        if !function.arguments.is_object() {
            return Err(Error::Template(format!(
                "the arguments of the call of {:?} are not a JSON object",
                function.name
            )));
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prepared(messages: Value) -> Result<Value> {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        prepare(&messages).map(|messages| serde_json::to_value(messages).unwrap())
    }

    #[test]
    fn unknown_fields_survive_in_order() {
        let message = json!({"role": "tool", "content": null, "tool_call_id": "7",
            "zebra": 1, "apple": [2], "tool_calls": [{"function": {"name": "f", "arguments": {}}, "id": "x", "type": "function"}]});
        let parsed: Message = serde_json::from_value(message.clone()).unwrap();
        assert_eq!(serde_json::to_value(parsed).unwrap(), message);
    }

    #[test]
    fn messages_become_what_templates_expect() {
        let messages = json!([
            {"role": "system", "content": "a"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "reasoning": "r", "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}},
                {"id": "2", "function": {"name": "g"}}]},
            {"role": "system", "content": "late"},
        ]);
        let expected = json!([
            {"role": "system", "content": "a\n\nbc"},
            {"role": "assistant", "content": null, "reasoning_content": "r", "reasoning": "r", "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": {"z": 1, "a": [2]}}},
                {"id": "2", "function": {"name": "g", "arguments": {}}}]},
            {"role": "system", "content": "late"},
        ]);
        assert_eq!(prepared(messages).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_converted_is_named() {
        let call = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]);
        assert!(prepared(call).unwrap_err().to_string().contains("\"f\" are not a JSON object"));
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert!(prepared(image).unwrap_err().to_string().contains("\"image_url\" is not text"));
    }
}
