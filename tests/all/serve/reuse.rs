//! What earlier requests have left is used, and changes nothing about the answers.

use serde_json::json;

use crate::serve::{
    asking::{CHAT, MODEL, TEMPLATE, TEXT, cold, conversation, usage},
    client::Server,
};

#[test]
fn earlier_work_is_reused_and_answers_stay_the_same() {
    let server = Server::start(&["-m", MODEL, "--chat-template-file", TEMPLATE]);
    repeated_prompts(&server);
    conversations(&server);
    shared_instructions(&server);
    questions_about_a_text(&server);
    after_a_client_has_left(&server);
    let without = Server::start(&["-m", MODEL, "--checkpoint-memory", "0", "-np", "1"]);
    let body = json!({"prompt": vec![7; 300], "max_tokens": 4, "temperature": 0});
    without.ok(TEXT, &body);
    let (_, cached) = usage(&without.ok(TEXT, &body));
    assert_eq!(cached, 0, "there is no memory to keep anything in");
    assert_eq!(without.metric("engine:checkpoint_bytes"), 0.0);
}

fn repeated_prompts(server: &Server) {
    let tokens: Vec<u32> = (0..200).map(|i| (i * 37) % 500).collect();
    let body = |tokens: &[u32]| {
        json!({
            "prompt": tokens, "max_tokens": 6, "temperature": 0, "logprobs": 5, "ignore_eos": true
        })
    };
    for n in [200, 1, 2, 100] {
        let expected = cold(server, TEXT, &body(&tokens[..n]));
        let again = server.ok(TEXT, &body(&tokens[..n]));
        // The last token is processed again, by the same step: not a bit differs.
        assert_eq!(usage(&again), (n as u64, n as u64 - 1), "{n} tokens");
        assert_eq!(again["choices"], expected["choices"], "{n} tokens");
    }
    // A beginning of what is held, with nothing to go back to, is processed anew.
    let expected = cold(server, TEXT, &body(&tokens[..150]));
    cold(server, TEXT, &body(&tokens));
    let part = server.ok(TEXT, &body(&tokens[..150]));
    assert_eq!((usage(&part).1, &part["choices"]), (0, &expected["choices"]));
    // Longer than what is held: it goes on where the prompt ended.
    let longer = server.ok(TEXT, &body(&tokens[..160]));
    assert_eq!(usage(&longer).1, 149);
    let expected = cold(server, TEXT, &body(&tokens[..160]));
    assert_eq!(longer["choices"][0]["text"], expected["choices"][0]["text"]);
}

fn conversations(server: &Server) {
    let long = "Tell me all that you know. ".repeat(10);
    let (body, answer) = conversation(&long, |body| server.ok(CHAT, body));
    assert_eq!(answer["choices"], cold(server, CHAT, &body)["choices"]);
}

fn shared_instructions(server: &Server) {
    let system = json!({"role": "system", "content": "Be kind to everyone you meet. ".repeat(20)});
    let ask = |question: &str| {
        json!({
            "messages": [system, {"role": "user", "content": question.repeat(60)}],
            "max_tokens": 4, "temperature": 0,
        })
    };
    cold(server, CHAT, &ask("Who are you? "));
    let other = server.ok(CHAT, &ask("What is this? "));
    let (prompt, cached) = usage(&other);
    assert!(cached > 100 && cached < prompt / 2, "{cached} of {prompt}");
    let expected = cold(server, CHAT, &ask("What is this? "));
    assert_eq!(other["choices"], expected["choices"]);
}

fn questions_about_a_text(server: &Server) {
    let ask = |question: u32| {
        let text = (0..1040).map(|i| (i * 53) % 500);
        let tokens: Vec<u32> = text.chain((0..50).map(|i| i * question)).collect();
        json!({"prompt": tokens, "max_tokens": 4, "temperature": 0})
    };
    cold(server, TEXT, &ask(3));
    let other = server.ok(TEXT, &ask(7));
    assert_eq!(usage(&other), (1090, 1089 - 512));
    let expected = cold(server, TEXT, &ask(7));
    assert_eq!(other["choices"], expected["choices"]);
}

fn after_a_client_has_left(server: &Server) {
    let tokens: Vec<u32> = (0..700).map(|i| (i * 91) % 500).collect();
    let body = json!({"prompt": tokens, "max_tokens": 6, "temperature": 0, "logprobs": 3});
    let expected = cold(server, TEXT, &body);
    for stream in [true, false] {
        let mut leaving = server.connect();
        let left = json!({"prompt": tokens, "stream": stream, "cache_prompt": false});
        let headers = ["Content-Type: application/json"];
        leaving.write("POST", TEXT, &headers, left.to_string().as_bytes());
        server.eventually(|| server.busy() == 1);
        drop(leaving);
        server.eventually(|| server.busy() == 0);
        assert_eq!(server.ok(TEXT, &body)["choices"], expected["choices"]);
    }
}

/// Models without recurrent state need no checkpoints.
#[test]
fn attention_goes_back_anywhere() {
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama.gguf");
    let server = Server::start(&["-m", llama, "--checkpoint-memory", "0"]);
    let body = |change: u32| {
        let tokens: Vec<u32> = (0..200).map(|i| (i * 37 + i / 120 * change) % 250).collect();
        json!({"prompt": tokens, "max_tokens": 6, "temperature": 0, "ignore_eos": true})
    };
    let expected = cold(&server, TEXT, &body(1));
    cold(&server, TEXT, &body(0));
    let changed = server.ok(TEXT, &body(1));
    assert_eq!(usage(&changed), (200, 120));
    assert_eq!(changed["choices"], expected["choices"]);
}
