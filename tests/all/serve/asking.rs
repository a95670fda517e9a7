//! What tests of reuse have in common: a model with recurrent state, and what an answer says of its
//! prompt.

use serde_json::{Value, json};

use crate::serve::client::Server;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";
pub(crate) const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-qwen35.gguf");
/// Drops the thinking of earlier turns, as Qwen's do.
pub(crate) const TEMPLATE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat/fixture-template.jinja");

/// Tokens of the prompt, and how many of them were not processed.
#[track_caller]
pub(crate) fn usage(answer: &Value) -> (u64, u64) {
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(answer["timings"]["cache_n"], cached);
    assert_eq!(answer["timings"]["prompt_n"], usage["prompt_tokens"].as_u64().unwrap() - cached);
    (usage["prompt_tokens"].as_u64().unwrap(), cached)
}

/// The answer without what was before.
#[track_caller]
pub(crate) fn cold(server: &Server, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["cache_prompt"] = false.into();
    let answer = server.ok(path, &body);
    assert_eq!(usage(&answer).1, 0);
    answer
}

/// Four turns of a conversation that begins with a question `long`, each sent by `ask`; the last body
/// and answer. Prompts are processed from the end of the one before on.
pub(crate) fn conversation(long: &str, mut ask: impl FnMut(&Value) -> Value) -> (Value, Value) {
    let body = |messages: &[Value]| {
        json!({
            "messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": true
        })
    };
    let mut messages = vec![json!({"role": "user", "content": long})];
    let mut answer = ask(&body(&messages));
    for turn in 0..3 {
        let before = usage(&answer).0;
        let message = answer["choices"][0]["message"].clone();
        assert!(message["reasoning_content"].is_string(), "the template opens thinking: {message}");
        messages.push(message);
        messages.push(json!({"role": "user", "content": "And what else?"}));
        answer = ask(&body(&messages));
        // All but the start of the last answer, whose thinking the template drops.
        let (prompt, cached) = usage(&answer);
        assert!(cached < before && before - cached < 16, "turn {turn}: {cached} of {before}");
        assert!(prompt > before);
    }
    (body(&messages), answer)
}
