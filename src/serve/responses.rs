//! `/v1/responses`: the part of OpenAI's newer API that text clients use. A request becomes one for
//! a chat; nothing is stored, so the whole conversation comes with each request.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::{Map, Value, json};

use super::{
    app::{App, Model},
    chat,
    error::ApiError,
    fields::Fields,
    http,
    response_events::{Asked, Responses},
    stream::{self, Started},
};

/// Answers a conversation.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let started = http::work(&app, request, start).await?;
    stream::respond(started, app.ping).await
}

fn start(app: &App, model: &Arc<Model>, mut fields: Fields) -> Result<Started, ApiError> {
    for (name, off) in
        [("previous_response_id", None), ("conversation", None), ("background", Some(false))]
    {
        if let Some(value) = fields.take::<Value>(name)?
            && off.is_none_or(|off| value != off)
        {
            return Err(ApiError::field(name, "is not supported: nothing is stored here"));
        }
    }
    let mut messages = Vec::new();
    let instructions = fields.take::<String>("instructions")?;
    messages.extend(instructions.iter().map(|text| json!({"role": "system", "content": text})));
    match fields.require("input")? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            for (i, item) in items.into_iter().enumerate() {
                add(&mut messages, item)
                    .map_err(|fault| ApiError::field(format!("input[{i}]"), fault))?;
            }
        }
        _ => return Err(ApiError::field("input", "is neither a text nor a list of items")),
    }
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let choice = fields.take::<Value>("tool_choice")?.unwrap_or("auto".into());
    let effort = fields.take::<Map<_, _>>("reasoning")?.and_then(|mut r| r.remove("effort"));
    let format = fields.take::<Map<_, _>>("text")?.and_then(|mut text| text.remove("format"));
    let limit = fields.take::<u64>("max_output_tokens")?;
    let asked = Asked {
        instructions,
        tools: tools.clone(),
        tool_choice: choice.clone(),
        max_output_tokens: limit,
        parallel: fields.peek("parallel_tool_calls").and_then(Value::as_bool).unwrap_or(true),
    };
    let called =
        choice.get("name").map(|name| json!({"type": "function", "function": {"name": name}}));
    fields.set("messages", messages.into());
    fields.set("tools", tools.into_iter().map(function).collect());
    fields.set("tool_choice", called.unwrap_or(choice));
    fields.set("reasoning_effort", effort.unwrap_or_default());
    fields.set("response_format", format.unwrap_or_default());
    fields.set("max_completion_tokens", limit.into());
    fields.set("n", Value::Null);
    chat::begin(app, model, fields, "resp_", |_| Box::new(Responses::new(asked)))
}

/// A tool in the form that a chat has it.
fn function(tool: Value) -> Value {
    match tool {
        Value::Object(mut function) if function.get("type") == Some(&json!("function")) => {
            function.remove("type");
            json!({"type": "function", "function": function})
        }
        other => other,
    }
}

/// Adds an item of the input as a message, or to the message before it.
fn add(messages: &mut Vec<Value>, item: Value) -> Result<(), String> {
    let text = |field: &str| match item.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Result<String, _>>(),
        _ => Err(format!("has no {field}")),
    };
    let name = |field: &str| {
        let name = item.get(field).and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| format!("has no {field}"))
    };
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => {
            messages.push(json!({"role": name("role")?, "content": text("content")?}));
        }
        "function_call" => {
            let function = json!({"name": name("name")?, "arguments": name("arguments")?});
            let call = json!({"id": name("call_id")?, "type": "function", "function": function});
            let message = assistant(messages);
            match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
        }
        "function_call_output" => messages.push(json!({
            "role": "tool", "tool_call_id": name("call_id")?, "content": text("output")?
        })),
        "reasoning" => {
            let field = if item.get("content").is_some_and(Value::is_array) {
                "content"
            } else {
                "summary"
            };
            let thought = text(field)?;
            messages
                .push(json!({"role": "assistant", "content": "", "reasoning_content": thought}));
        }
        other => return Err(format!("is of type {other:?}, which is not supported")),
    }
    // Thinking and what came of it are one message.
    if let [.., thought, said] = messages.as_mut_slice()
        && thought.get("reasoning_content").is_some()
        && thought["content"] == ""
        && thought.get("tool_calls").is_none()
        && said["role"] == "assistant"
        && said.get("reasoning_content").is_none()
    {
        said["reasoning_content"] = thought["reasoning_content"].take();
        let at = messages.len() - 2;
        messages.remove(at);
    }
    Ok(())
}

/// The message of the assistant that a call belongs to.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": null}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn part(part: &Value) -> Result<String, String> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    match part.get("text").and_then(Value::as_str) {
        Some(text) if kind.ends_with("text") => Ok(text.to_owned()),
        _ => Err(format!("has a part of type {kind:?}: only text is supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let mut messages = Vec::new();
        for item in [
            json!({"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}),
            json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
            json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}),
            json!({"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "1", "output": "7"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]}),
        ] {
            add(&mut messages, item).unwrap();
        }
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call("1", "f"), call("2", "g")]},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
            {"role": "assistant", "content": "c"},
        ]);
        assert_eq!(Value::from(messages), expected);
    }

    #[test]
    fn thinking_belongs_to_the_text_after_it() {
        let mut messages = Vec::new();
        let thought =
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]});
        add(&mut messages, thought).unwrap();
        add(&mut messages, json!({"role": "assistant", "content": "c"})).unwrap();
        let expected = json!([{"role": "assistant", "content": "c", "reasoning_content": "hm"}]);
        assert_eq!(Value::from(messages), expected);
    }

    #[test]
    fn what_is_no_item_is_refused() {
        for item in [
            json!(1),
            json!({"role": "user"}),
            json!({"role": "user", "content": [{"type": "input_image"}]}),
            json!({"type": "function_call", "call_id": "1", "name": "f"}),
            json!({"type": "computer_call"}),
        ] {
            assert!(add(&mut Vec::new(), item.clone()).is_err(), "{item}");
        }
    }
}
