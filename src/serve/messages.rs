//! The messages of a conversation, checked field by field.

use serde_json::Value;

use super::{error::ApiError, fields::typed};
use crate::text::Message;

/// Who can speak.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads a list of messages.
pub(super) fn read(messages: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| one(&format!("messages[{i}]"), message))
        .collect()
}

fn one(name: &str, message: Value) -> Result<Message, ApiError> {
    let wrong = |field: &str, what: &str| Err(ApiError::field(format!("{name}{field}"), what));
    let Some(fields) = message.as_object() else { return wrong("", "is not an object") };
    match fields.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
        Some(role) => {
            let fault = format!("is {role}: {} are known", ROLES.join(", "));
            return wrong(".role", &fault);
        }
        None => return wrong(".role", "is missing"),
    }
    match fields.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (j, part) in parts.iter().enumerate() {
                let at = format!(".content[{j}]");
                match part.get("type").and_then(Value::as_str) {
                    Some("text") if part.get("text").is_some_and(Value::is_string) => {}
                    Some("text") => return wrong(&at, "has no text"),
                    Some(kind) => return wrong(&at, &format!("is of type {kind:?}: only text is")),
                    None => return wrong(&at, "is not an object with a type"),
                }
            }
        }
        Some(_) => return wrong(".content", "is neither a string nor a list of text parts"),
    }
    let calls = fields.get("tool_calls").filter(|calls| !calls.is_null());
    if let Some(calls) = calls {
        let Some(calls) = calls.as_array() else { return wrong(".tool_calls", "is not a list") };
        for (j, call) in calls.iter().enumerate() {
            let at = format!(".tool_calls[{j}].function");
            let Some(function) = call.get("function").and_then(Value::as_object) else {
                return wrong(&at, "is not an object");
            };
            if !function.get("name").is_some_and(Value::is_string) {
                return wrong(&at, "has no name");
            }
        }
    }
    for field in ["reasoning_content", "name", "tool_call_id"] {
        if fields.get(field).is_some_and(|value| !value.is_null() && !value.is_string()) {
            return wrong(&format!(".{field}"), "is not a string");
        }
    }
    typed(name, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wrong_messages_are_named() {
        for (message, field) in [
            (json!(1), "messages[0]"),
            (json!({}), "messages[0].role"),
            (json!({"role": "king"}), "messages[0].role"),
            (json!({"role": 1}), "messages[0].role"),
            (json!({"role": "user", "content": 1}), "messages[0].content"),
            (json!({"role": "user", "content": [1]}), "messages[0].content[0]"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0]"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0]"),
            (json!({"role": "assistant", "tool_calls": 1}), "messages[0].tool_calls"),
            (json!({"role": "assistant", "tool_calls": [1]}), "messages[0].tool_calls[0].function"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {}}]}),
                "messages[0].tool_calls[0].function",
            ),
            (json!({"role": "tool", "tool_call_id": 1}), "messages[0].tool_call_id"),
        ] {
            let error = read(vec![message]).unwrap_err().body();
            assert_eq!(error["error"]["param"], field, "{error}");
        }
        assert_eq!(read(vec![]).unwrap_err().body()["error"]["param"], "messages");
    }

    #[test]
    fn what_clients_send_is_read() {
        let all = json!([
            {"role": "developer", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}], "name": null},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "assistant", "content": "c", "tool_calls": null},
            {"role": "tool", "content": "d", "tool_call_id": "1"},
        ]);
        let Value::Array(all) = all else { unreachable!() };
        assert_eq!(read(all).unwrap().len(), 5);
    }
}
