//! Answers held to a form: JSON, a schema, a grammar, a forced call; streamed or not, after
//! thinking or not. The demo model has learned none of it, so what fits was made to.

use serde_json::{Value, json};

use crate::serve::client::Server;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn question(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 200,
    });
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"enum": ["Tom", "Ann"]}, "age": {"type": "integer", "maximum": 99, "minimum": 1}},
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(["Tom", "Ann"].contains(&value["name"].as_str().unwrap()), "{text}");
    assert!((1..100).contains(&value["age"].as_u64().unwrap()), "{text}");
}

fn joined(chunks: &[Value], path: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(path)?.as_str()).collect()
}

#[test]
fn answers_take_the_form_asked_for() {
    let server = Server::start(&["--parallel", "2"]);
    schemas(&server);
    grammars(&server);
    forced_calls(&server);
    // A template that shows the model calls in tags.
    let template = "{{ messages[0].content }}{# <function=name> #}";
    forced_calls(&Server::start(&["--chat-template", template]));
    after_thinking(&server);
}

fn schemas(server: &Server) {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}});
    for (temperature, ignore_eos) in [(0.0, false), (2.0, false), (2.0, true)] {
        let body = question(json!({
            "response_format": format, "temperature": temperature, "ignore_eos": ignore_eos,
            "seed": 5,
        }));
        let answer = server.ok(CHAT, &body);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        check(text);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let chunks = server.stream(CHAT, &body);
        assert_eq!(joined(&chunks, "/choices/0/delta/content"), text);
    }
    let two =
        server.ok(CHAT, &question(json!({"response_format": format, "n": 2, "temperature": 2})));
    (0..2).for_each(|i| check(two["choices"][i]["message"]["content"].as_str().unwrap()));
    let text = json!({"prompt": "Here you are:", "json_schema": schema(), "max_tokens": 200});
    check(server.ok(TEXT, &text)["choices"][0]["text"].as_str().unwrap());
    let object =
        json!({"prompt": "x", "response_format": {"type": "json_object"}, "max_tokens": 5});
    assert!(server.ok(TEXT, &object)["choices"][0]["text"].as_str().unwrap().starts_with('{'));
}

fn grammars(server: &Server) {
    let body = question(json!({"grammar": "start: \"yes\" | \"no\"", "temperature": 0}));
    let answer = server.ok(CHAT, &body);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{text}");
    // Probabilities are those without the grammar.
    let body = question(json!({"grammar": "start: \"yes\"", "logprobs": true, "temperature": 0}));
    let answer = server.ok(CHAT, &body);
    assert!(answer.pointer("/choices/0/logprobs/content/0/logprob").unwrap().as_f64() < Some(0.0));
}

fn forced_calls(server: &Server) {
    let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema()}});
    let tools = json!([function("f"), function("g")]);
    let named = json!({"type": "function", "function": {"name": "g"}});
    for (choice, names) in [(json!("required"), "fg"), (named, "g")] {
        let body = question(json!({
            "tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "temperature": 0,
        }));
        let answer = server.ok(CHAT, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert!(names.contains(call["name"].as_str().unwrap()));
        check(call["arguments"].as_str().unwrap());
        let chunks = server.stream(CHAT, &body);
        let arguments = joined(&chunks, "/choices/0/delta/tool_calls/0/function/arguments");
        assert_eq!(arguments, call["arguments"].as_str().unwrap());
    }
    // Where calls are free, a schema leaves them possible.
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema()}});
    let body = question(json!({"tools": tools, "response_format": format, "temperature": 0}));
    let answer = server.ok(CHAT, &body);
    let message = &answer["choices"][0]["message"];
    check(
        message["content"]
            .as_str()
            .or(message
                .pointer("/tool_calls/0/function/arguments")
                .unwrap_or(&Value::Null)
                .as_str())
            .unwrap(),
    );
}

fn after_thinking(server: &Server) {
    // The prompt opens the thinking; the model is made to end it at once.
    let end = server.ok("/tokenize", &json!({"content": "</think>"}))["tokens"][0].clone();
    let template = "{{ messages[0].content }}<think>\n";
    let server = Server::start(&["--chat-template", template]);
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema()}});
    let body = question(json!({
        "response_format": format, "temperature": 1, "seed": 1, "logit_bias": {end.to_string(): 100},
    }));
    let answer = server.ok(CHAT, &body);
    let message = &answer["choices"][0]["message"];
    check(message["content"].as_str().unwrap());
    let chunks = server.stream(CHAT, &body);
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), message["content"].as_str().unwrap());
    let thinking = joined(&chunks, "/choices/0/delta/reasoning_content");
    assert_eq!(thinking, message["reasoning_content"].as_str().unwrap_or_default());
}
