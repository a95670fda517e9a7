//! The same answers in other words: OpenAI's Responses and llama.cpp's own completion.

use serde_json::{Value, json};

use crate::serve::client::Server;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const NATIVE: &str = "/completion";

#[test]
fn other_dialects_give_the_same_answers() {
    let server = Server::start(&["--parallel", "2"]);
    responses(&server);
    response_events(&server);
    forced_calls_in_responses(&server);
    native(&server);
    routes_that_tell(&server);
}

fn responses(server: &Server) {
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me a story."}]);
    let chat =
        json!({"messages": messages, "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let chat = server.ok(CHAT, &chat);
    let expected = &chat["choices"][0]["message"]["content"];
    let text = json!([{"type": "input_text", "text": "Tell me a story."}]);
    for input in [json!("Tell me a story."), json!([{"role": "user", "content": text}])] {
        let body = json!({"input": input, "instructions": "Be brief.", "temperature": 0,
            "max_output_tokens": 12, "ignore_eos": true});
        let answer = server.ok(RESPONSES, &body);
        assert_eq!(
            (&answer["object"], &answer["status"]),
            (&json!("response"), &json!("incomplete"))
        );
        assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(&answer["output"][0]["content"][0]["text"], expected, "{answer}");
        let usage = &answer["usage"];
        assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);
        assert_eq!(usage["output_tokens"], 12);
    }
}

fn response_events(server: &Server) {
    let body = json!({"input": "Tell me a story.", "temperature": 0, "max_output_tokens": 12,
        "ignore_eos": true, "stream": true});
    let response = server.post(RESPONSES, &body);
    let events: Vec<Value> =
        response.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    // Each event carries its name twice, as clients read either.
    let names: Vec<_> = response.body.lines().filter_map(|l| l.strip_prefix("event: ")).collect();
    assert!(events.iter().map(|event| event["type"].as_str().unwrap()).eq(names.iter().copied()));
    assert!(events.iter().enumerate().all(|(i, event)| event["sequence_number"] == i));
    let text: String = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);
    let whole = server.ok(
        RESPONSES,
        &json!({"input": "Tell me a story.", "temperature": 0,
        "max_output_tokens": 12, "ignore_eos": true}),
    );
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
    let order: Vec<_> = names.iter().filter(|n| !n.ends_with("delta")).copied().collect();
    assert_eq!(
        order,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
}

fn forced_calls_in_responses(server: &Server) {
    let parameters = json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "name": "f", "parameters": parameters, "strict": true});
    let mut body = json!({"input": "Call it.", "tools": [tool], "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "name": "f"}, "temperature": 0});
    let answer = server.ok(RESPONSES, &body);
    let call = &answer["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("f")), "{answer}");
    assert_eq!(call["arguments"], "{\"n\":7}");
    body["stream"] = true.into();
    let events = server.post(RESPONSES, &body).events();
    let done = events.iter().find(|e| e.contains("response.function_call_arguments.done")).unwrap();
    assert!(done.contains(r#"{\"n\":7}"#), "{done}");
    // What came of it goes back.
    let input = json!([{"role": "user", "content": "Call it."}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "8"}]);
    let body = json!({"input": input, "tools": body["tools"], "max_output_tokens": 2});
    assert_eq!(server.ok(RESPONSES, &body)["status"], "incomplete");
}

fn native(server: &Server) {
    let body = json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0,
        "return_tokens": true, "n_probs": 2, "id_slot": 1});
    let answer = server.ok(NATIVE, &body);
    let text = answer["content"].as_str().unwrap();
    let plain = server.ok(
        "/v1/completions",
        &json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
    );
    assert_eq!(plain["choices"][0]["text"], text);
    assert_eq!((&answer["stop_type"], &answer["tokens_predicted"]), (&json!("limit"), &json!(8)));
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 8);
    let probabilities = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 8);
    assert_eq!(probabilities[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(answer["generation_settings"]["n_predict"], 8);
    assert_eq!(answer["prompt"], "Once upon a time");
    // It ran where it was told to.
    let slots = server.get("/slots").json();
    assert!(slots[1]["n_tokens"].as_u64().unwrap() > 0, "{slots}");
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped =
        server.ok(NATIVE, &json!({"prompt": "Once upon a time", "temperature": 0, "stop": [stop]}));
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(stop)));
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post(NATIVE, &streamed).events();
    let events: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let joined: String = events.iter().map(|e| e["content"].as_str().unwrap()).collect();
    assert_eq!(joined, text);
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["stop"] == false));
    assert_eq!((&last["stop"], &last["timings"]["predicted_n"]), (&json!(true), &json!(8)));
    // Ids and texts make one prompt.
    let ids = server.ok("/tokenize", &json!({"content": "Once upon", "add_special": true}));
    let mut mixed = ids["tokens"].as_array().unwrap().clone();
    mixed.push(" a time".into());
    let mixed = server.ok(NATIVE, &json!({"prompt": mixed, "n_predict": 8, "temperature": 0}));
    assert_eq!(mixed["content"], text);
}

fn routes_that_tell(server: &Server) {
    let props = server.get("/props").json();
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(2), &json!("demo")));
    assert!(props["default_generation_settings"]["n_ctx"].as_u64().unwrap() > 0);
    assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
    assert!(props["memory"]["device"]["weights"].as_u64().unwrap() > 1_000_000);
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let count = server.ok("/v1/chat/completions/input_tokens", &messages);
    let answer = server.ok(CHAT, &json!({"messages": messages["messages"], "max_tokens": 0}));
    assert_eq!(count["input_tokens"], answer["usage"]["prompt_tokens"]);
}

/// What the description names is there, and takes what it says.
#[test]
fn the_description_is_of_this_server() {
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/described");
    let server = Server::start(&["-n", "1", "--session-dir", folder]);
    let headers = ["Content-Type: application/json"];
    let kept = server.connect().send("PUT", "/conversations/0", &headers, b"{}");
    assert_eq!(kept.status, 200, "{}", kept.body);
    let description = server.get("/openapi.json").json();
    assert_eq!(description["openapi"], "3.1.0");
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    for (path, methods) in paths {
        let path = &path.replace("{id}", "0");
        let response = match methods.get("post") {
            Some(post) => {
                assert!(post["responses"]["400"].is_object(), "{path}");
                server.post(path, &json!({}))
            }
            None => server.get(path),
        };
        let expected = if methods.get("post").is_some() { 400 } else { 200 };
        assert_eq!(response.status, expected, "{path}: {}", response.body);
    }
}
