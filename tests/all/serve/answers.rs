//! Answers: their shapes, and that streams, seeds and settings do what they say.

use serde_json::{Value, json};

use crate::serve::client::Server;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn question() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "temperature": 0, "max_tokens": 12, "ignore_eos": true,
    })
}

fn with(mut body: Value, fields: Value) -> Value {
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn joined(chunks: &[Value], path: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(path)?.as_str()).collect()
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// One server for all: starting it takes longer than asking.
#[test]
fn the_demo_model_answers() {
    let server = Server::start(&["--parallel", "2", "--alias", "tiny"]);
    chat_has_the_shape_that_clients_expect(&server);
    a_stream_is_the_answer_in_pieces(&server);
    texts_are_continued(&server);
    seeds_and_choices(&server);
    stop_strings_and_limits(&server);
    probabilities(&server);
    settings_have_effects(&server);
    routes_that_tell(&server);
}

fn chat_has_the_shape_that_clients_expect(server: &Server) {
    let answer = server.ok(CHAT, &question());
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!text_of(&answer).is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 12);
    let timings = &answer["timings"];
    let processed = timings["cache_n"].as_u64().unwrap() + timings["prompt_n"].as_u64().unwrap();
    assert_eq!((processed, timings["predicted_n"].as_u64()), (prompt, Some(12)));
    assert!(timings["prompt_per_second"].as_f64().unwrap() > 0.0);
    // The program gives the same answer on the command line.
    let run = ["run", "-p", "Tell me a story.", "--temp", "0", "-n", "12", "--ignore-eos"];
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_engine")).args(run).output().unwrap();
    assert_eq!(String::from_utf8(run.stdout).unwrap().trim_end(), text_of(&answer).trim_end());
}

fn a_stream_is_the_answer_in_pieces(server: &Server) {
    let answer = server.ok(CHAT, &question());
    let body = with(question(), json!({"stream_options": {"include_usage": true}}));
    let chunks = server.stream(CHAT, &body);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), text_of(&answer));
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 12);
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["timings"]["predicted_n"], 12);
    for chunk in before {
        assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], last["id"]);
    }
    let without = server.stream(CHAT, &question());
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
    let body = with(question(), json!({"return_progress": true, "cache_prompt": false}));
    let chunks = server.stream(CHAT, &body);
    let progress: Vec<_> = chunks.iter().filter_map(|c| c.get("prompt_progress")).collect();
    let (first, last) = (progress[0], progress[progress.len() - 1]);
    assert_eq!((&first["processed"], &first["cache"]), (&json!(0), &json!(0)));
    assert_eq!(last["processed"], last["total"]);
}

fn texts_are_continued(server: &Server) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    let answer = server.ok(TEXT, &body);
    assert_eq!(answer["object"], "text_completion");
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(!text.is_empty());
    let chunks = server.stream(TEXT, &body);
    assert_eq!(joined(&chunks, "/choices/0/text"), text);
    // The same as ids, and several at once.
    let ids = server.ok("/tokenize", &json!({"content": "Once upon a time", "add_special": true}));
    let ids = &ids["tokens"];
    let answer = server.ok(TEXT, &with(body.clone(), json!({"prompt": ids})));
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(answer["usage"]["prompt_tokens"], ids.as_array().unwrap().len());
    let both = server.ok(TEXT, &with(body, json!({"prompt": ["Once upon a time", ids, "And"]})));
    assert_eq!(both["choices"].as_array().unwrap().len(), 3);
    assert_eq!(
        (&both["choices"][0]["text"], &both["choices"][1]["text"]),
        (&json!(text), &json!(text))
    );
    assert_ne!(both["choices"][2]["text"], text);
}

fn seeds_and_choices(server: &Server) {
    let sampled = with(question(), json!({"temperature": 1.5, "top_k": 0, "max_tokens": 20}));
    let seeded = |seed: u64| server.ok(CHAT, &with(sampled.clone(), json!({"seed": seed})));
    let first = seeded(7);
    assert_eq!(text_of(&first), text_of(&seeded(7)));
    assert_ne!(text_of(&first), text_of(&seeded(8)));
    let random = server.ok(CHAT, &sampled);
    assert_ne!(text_of(&random), text_of(&server.ok(CHAT, &sampled)));
    assert_eq!(text_of(&random), text_of(&seeded(random["seed"].as_u64().unwrap())));
    // Each choice has a seed of its own, the first that of the request.
    let two = server.ok(CHAT, &with(sampled.clone(), json!({"seed": 7, "n": 2})));
    let content = |i: usize| two["choices"][i]["message"]["content"].as_str().unwrap();
    assert_eq!(content(0), text_of(&first));
    assert_eq!(content(1), text_of(&seeded(8)));
    assert_eq!(two["usage"]["completion_tokens"], 40);
    assert_eq!(two["usage"]["prompt_tokens"], first["usage"]["prompt_tokens"]);
    let chunks = server.stream(CHAT, &with(sampled, json!({"seed": 7, "n": 2})));
    let of = |i: usize| {
        let of_choice = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == i);
        joined(&of_choice.cloned().collect::<Vec<_>>(), "/choices/0/delta/content")
    };
    assert_eq!((of(0).as_str(), of(1).as_str()), (content(0), content(1)));
}

fn stop_strings_and_limits(server: &Server) {
    let answer = server.ok(CHAT, &question());
    let text = text_of(&answer);
    let cut = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[cut..].chars().take(3).collect();
    for stop in [json!(stop), json!(["never there", stop])] {
        let body = with(question(), json!({"stop": stop}));
        let stopped = server.ok(CHAT, &body);
        let expected = &text[..text.find(stop.as_str().or(stop[1].as_str()).unwrap()).unwrap()];
        assert_eq!(text_of(&stopped), expected);
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        assert_eq!(joined(&server.stream(CHAT, &body), "/choices/0/delta/content"), expected);
    }
    let none = server.ok(CHAT, &with(question(), json!({"max_tokens": 0})));
    assert_eq!((text_of(&none), &none["usage"]["completion_tokens"]), ("", &json!(0)));
    assert_eq!(none["choices"][0]["finish_reason"], "length");
    // What clients send without meaning anything by it.
    let idle = json!({"stop": "", "tools": [], "tool_choice": "auto", "user": "me", "logit_bias": {},
        "max_tokens": null, "max_completion_tokens": 12, "response_format": {"type": "text"}});
    assert_eq!(text_of(&server.ok(CHAT, &with(question(), idle))), text);
}

fn probabilities(server: &Server) {
    let body = with(question(), json!({"logprobs": true, "top_logprobs": 3}));
    let answer = server.ok(CHAT, &body);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 12);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the chosen one is the most likely.
        assert_eq!((&top[0]["id"], &top[0]["logprob"]), (&token["id"], &token["logprob"]));
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    let texts: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(texts, text_of(&answer));
    let chunks = server.stream(CHAT, &body);
    let streamed = chunks.iter().filter_map(|c| c.pointer("/choices/0/logprobs/content/0"));
    assert!(streamed.eq(tokens));
    let body = json!({"prompt": "Once", "max_tokens": 3, "temperature": 0, "logprobs": 2});
    let logprobs = &server.ok(TEXT, &body)["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}

fn settings_have_effects(server: &Server) {
    let first = |fields: Value| {
        let body =
            json!({"prompt": "the the the", "max_tokens": 16, "temperature": 0, "logprobs": 0});
        let answer = server.ok(TEXT, &with(body, fields));
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = first(json!({}));
    let id = |text: &str| server.ok("/tokenize", &json!({"content": text}))["tokens"][0].clone();
    let token = id(&plain);
    assert_ne!(first(json!({"logit_bias": {token.to_string(): -100}})), plain);
    assert_ne!(first(json!({"logit_bias": [[token, false]]})), plain);
    for penalty in ["presence_penalty", "frequency_penalty"] {
        assert_ne!(first(json!({penalty: 50, "repeat_last_n": -1})), plain, "{penalty}");
    }
    assert_ne!(first(json!({"repeat_penalty": 50, "repeat_last_n": -1})), plain);
    // Filters that leave one token make any temperature greedy.
    for filter in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        assert_eq!(first(with(filter.clone(), json!({"temperature": 3}))), plain, "{filter}");
    }
}

fn routes_that_tell(server: &Server) {
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["meta"]["n_vocab"], 1024);
    let text = "Zoë is here. <|im_end|>";
    let tokens = server.ok("/tokenize", &json!({"content": text, "with_pieces": true}));
    let ids: Value = tokens["tokens"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
    assert_eq!(server.ok("/detokenize", &json!({"tokens": ids}))["content"], text);
    let prompt = server.ok("/apply-template", &question());
    assert!(prompt["prompt"].as_str().unwrap().ends_with("<|im_start|>assistant\n"));
    assert_eq!(server.get("/slots").json().as_array().unwrap().len(), 2);
    assert!(server.metric("llamacpp:tokens_predicted_total") > 100.0);
    // The last answer comes before the news that its slot is free.
    server.eventually(|| server.metric("llamacpp:requests_processing") == 0.0);
    let metrics = server.get("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    assert_eq!(metrics.header("access-control-allow-origin"), None);
}
