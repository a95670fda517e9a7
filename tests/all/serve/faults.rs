//! Wrong requests: each gets a 4xx that names the field, and the server goes on.

use serde_json::{Value, json};

use crate::serve::client::{Connection, Server};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const CONTEXT: usize = 128;

fn message() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

#[test]
fn wrong_requests_are_refused_and_the_server_goes_on() {
    let server = Server::start(&["-c", &CONTEXT.to_string(), "-n", "4"]);
    let mut connection = server.connect();
    fields_are_named(&mut connection);
    bodies_that_are_no_json(&mut connection);
    routes_and_media_types(&mut connection);
    prompts_longer_than_the_context(&mut connection);
    damaged_bodies(&mut connection);
    // The same connection still serves.
    let good = json!({"messages": message(), "temperature": 0});
    assert_eq!(connection.post(CHAT, &good).status, 200);
    large_bodies(&server);
    assert_eq!(server.post(CHAT, &good).status, 200);
}

#[track_caller]
fn refused(connection: &mut Connection, path: &str, body: &Value, field: &str) {
    let response = connection.post(path, body);
    assert_eq!(response.status, 400, "{body}: {}", response.body);
    let error = &response.json()["error"];
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(error["type"], "invalid_request_error", "{body}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(field), "{body}: {message}");
    assert!(
        error["param"].as_str().unwrap().starts_with(field.split('[').next().unwrap()),
        "{error}"
    );
}

fn fields_are_named(connection: &mut Connection) {
    let wrong = json!({
        "temperature": ["hot", 1e300, [1], {}],
        "top_k": [1.5, "many", true],
        "top_p": [2, -1, "x"],
        "min_p": [-0.5],
        "seed": [-2, 1.5, "x", 1e30],
        "max_tokens": [-5, 1.5, "x", 1e30],
        "max_completion_tokens": [-5],
        "n_predict": [[]],
        "stop": [1, [1], {}, [["x"]]],
        "n": [0, -1, 1.5, 2, "x"],
        "stream": [1, "yes"],
        "stream_options": [1, {"include_usage": 1}],
        "logit_bias": [1, "x", {"x": 1}, {"1": "x"}, {"99999": 1}, [[1]], [[-1, 1]], [1]],
        "repeat_penalty": [0, -1],
        "repeat_last_n": [-2],
        "presence_penalty": ["x"],
        "ignore_eos": [1],
        "cache_prompt": ["x"],
        "return_progress": [1],
        // What is not there is not ignored.
        "grammar": ["root ::= \"a\"", "start: nothing", 1],
        "json_schema": [1, {"type": "sting"}, {"$ref": "#/$defs/none"}],
        "response_format": [{"type": "json_schema"}, {"type": "xml"}, 1,
            {"type": "json_schema", "json_schema": {"schema": {"not": 1}}}],
        "mirostat": [2],
        "dry_multiplier": [0.5],
        "xtc_probability": [0.5],
        "samplers": [["top_k"]],
        "id_slot": [1, -2, "x"],
        "n_probs": [21, -1, "x"],
        "suffix": ["x"],
        "echo": [true],
        "best_of": [2],
    });
    for (field, values) in wrong.as_object().unwrap() {
        for value in values.as_array().unwrap() {
            refused(connection, TEXT, &json!({"prompt": "Hi", field: value}), field);
            refused(connection, CHAT, &json!({"messages": message(), field: value}), field);
        }
    }
    let chat = json!({
        "messages": [1, "x", {}, [], [1], [{"role": "king", "content": ""}], [{"content": "x"}],
            [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "image_url"}]}]],
        "tools": [1, [1], [{"type": "function"}]],
        "tool_choice": ["sometimes"],
        "parallel_tool_calls": [1],
        "logprobs": [1],
        "top_logprobs": [2, 21, -1],
        "reasoning_format": ["x", 1],
        "reasoning_effort": [1],
        "chat_template_kwargs": [1],
        "add_generation_prompt": [1],
    });
    for (field, values) in chat.as_object().unwrap() {
        for value in values.as_array().unwrap() {
            let mut body = json!({"messages": message()});
            body[field] = value.clone();
            refused(connection, CHAT, &body, field);
        }
    }
    refused(connection, CHAT, &json!({}), "messages");
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let other = json!({"type": "function", "function": {"name": "g"}});
    let forced = json!({"messages": message(), "tools": tools, "tool_choice": other});
    refused(connection, CHAT, &forced, "tool_choice");
    for prompt in
        [json!(1), json!([]), json!(""), json!({}), json!([1.5]), json!([-1]), json!([99999])]
    {
        refused(connection, TEXT, &json!({"prompt": prompt}), "prompt");
    }
    refused(connection, TEXT, &json!({"prompt": "x", "logprobs": 21}), "logprobs");
    for (field, value) in [
        ("input", json!(1)),
        ("input", json!([{"type": "image"}])),
        ("input", json!([{"role": "user", "content": [{"type": "input_image"}]}])),
        ("previous_response_id", json!("resp_1")),
        ("background", json!(true)),
        ("max_output_tokens", json!(-1)),
        ("tools", json!([{"type": "web_search"}])),
        ("reasoning", json!(1)),
    ] {
        let mut body = json!({"input": "Hi"});
        body[field] = value;
        refused(connection, "/v1/responses", &body, field);
    }
    refused(connection, "/v1/responses", &json!({}), "input");
    for prompt in [json!({}), json!([1.5]), json!([[1]]), json!("")] {
        refused(connection, "/completion", &json!({"prompt": prompt}), "prompt");
    }
    refused(connection, "/tokenize", &json!({"content": 1}), "content");
    refused(connection, "/detokenize", &json!({"tokens": ["x"]}), "tokens[0]");
    refused(connection, "/detokenize", &json!({"tokens": [4096]}), "tokens");
}

fn bodies_that_are_no_json(connection: &mut Connection) {
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"prompt\": \"\xff\"}",
        b"{} x",
        deep.as_bytes(),
        b"{\"prompt\": \"\\ud800\"}",
    ];
    for body in bodies {
        let response = connection.post_bytes(TEXT, body);
        assert_eq!(response.status, 400, "{}", response.body);
        assert!(response.json()["error"]["message"].is_string());
    }
    let huge = connection.post_bytes(TEXT, b"{\"prompt\": \"x\", \"min_p\": 1e999}");
    assert_eq!((huge.status, &huge.json()["error"]["param"]), (400, &json!("min_p")));
}

/// Bodies with a few bytes changed, dropped or doubled at random places.
fn damaged_bodies(connection: &mut Connection) {
    let body = json!({
        "messages": message(), "temperature": 0.5, "top_k": 3, "stop": ["x"], "n": 1, "seed": 1,
        "logit_bias": {"7": -1.5}, "stream": false, "max_tokens": 1, "logprobs": true,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    });
    let body = body.to_string().into_bytes();
    const BYTES: &[u8] = b"\"{}[]:,0-.eEtfn\\\xff";
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut refused = 0;
    for _ in 0..200 {
        let mut damaged = body.clone();
        for _ in 0..=random(3) {
            let at = random(damaged.len());
            match random(3) {
                0 => damaged[at] = BYTES[random(BYTES.len())],
                1 => drop(damaged.remove(at)),
                _ => damaged.insert(at, damaged[at]),
            }
        }
        let response = connection.post_bytes(CHAT, &damaged);
        let text = String::from_utf8_lossy(&damaged).into_owned();
        match response.status {
            200 => assert!(response.json()["choices"].is_array(), "{text}"),
            400..500 => {
                refused += 1;
                assert!(response.json()["error"]["message"].is_string(), "{text}");
            }
            status => panic!("{status} for {text}: {}", response.body),
        }
    }
    assert!(refused > 50, "only {refused}");
}

fn routes_and_media_types(connection: &mut Connection) {
    let json = "Content-Type: application/json";
    let mut status = |method, path, headers: &[&str], body: &[u8]| {
        let response = connection.send(method, path, headers, body);
        assert!(response.json()["error"]["message"].is_string());
        response.status
    };
    assert_eq!(status("GET", "/nowhere", &[], b""), 404);
    assert_eq!(status("POST", "/v1/embeddings", &[json], b"{}"), 501);
    assert_eq!(status("GET", CHAT, &[], b""), 405);
    assert_eq!(status("OPTIONS", CHAT, &["Origin: http://example.org"], b""), 405);
    assert_eq!(status("POST", CHAT, &["Content-Type: text/plain"], b"{}"), 415);
    assert_eq!(status("POST", CHAT, &[], b"{}"), 415);
    // The name of somebody who lets it point here, so that a browser shows him the answers.
    for path in ["/v1/models", "/health", "/"] {
        assert_eq!(status("GET", path, &["Host: rebound.example"], b""), 403);
    }
}

fn prompts_longer_than_the_context(connection: &mut Connection) {
    let prompt = |tokens: usize| json!({"prompt": vec![5; tokens], "temperature": 0});
    let full = connection.post(TEXT, &prompt(CONTEXT)).json();
    assert_eq!(full["usage"]["completion_tokens"], 1, "{full}");
    assert_eq!(full["choices"][0]["finish_reason"], "length");
    let long = "word ".repeat(500);
    for (path, body) in [
        (TEXT, prompt(CONTEXT + 1)),
        (TEXT, json!({"prompt": long})),
        (CHAT, json!({"messages": [{"role": "user", "content": long}]})),
    ] {
        let response = connection.post(path, &body);
        assert_eq!(response.status, 400);
        let error = &response.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["n_ctx"], CONTEXT);
        let tokens = error["n_prompt_tokens"].as_u64().unwrap();
        assert!(tokens > CONTEXT as u64);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&tokens.to_string()) && message.contains(&CONTEXT.to_string()));
    }
}

fn large_bodies(server: &Server) {
    let large = vec![b' '; 17 << 20];
    let response = server.connect().post_bytes(TEXT, &large);
    assert_eq!(response.status, 413);
    // In chunks, so that the length is not told beforehand.
    let chunk = [format!("{:x}\r\n", 1 << 20).as_bytes(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    let headers = ["Content-Type: application/json", "Transfer-Encoding: chunked"];
    let mut connection = server.connect();
    connection.write("POST", TEXT, &headers, &[chunk.repeat(17), b"0\r\n\r\n".to_vec()].concat());
    assert_eq!(connection.read().status, 413);
}

#[test]
fn every_route_but_health_wants_a_key() {
    let template = "{{ raise_exception('Only knights may speak.') }}";
    let args = ["--api-key", "first,second", "-n", "2", "--chat-template", template];
    let server = Server::start(&args);
    let mut connection = server.connect();
    let json = "Content-Type: application/json";
    let body = json!({"prompt": "Hi"}).to_string();
    let routes = [
        ("POST", CHAT),
        ("POST", TEXT),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/slots"),
        ("GET", "/nowhere"),
    ];
    for (method, path) in routes {
        for key in
            ["X: y", "Authorization: Bearer wrong", "Authorization: Bearer", "x-api-key: firs"]
        {
            let response = connection.send(method, path, &[json, key], body.as_bytes());
            assert_eq!(response.status, 401, "{path} with {key}");
            let error = &response.json()["error"];
            assert_eq!(error["type"], "authentication_error");
        }
    }
    for key in ["Authorization: Bearer first", "authorization: bearer second", "x-api-key: first"] {
        let named = [json, key, "Host: minipc.example"];
        assert_eq!(connection.send("POST", TEXT, &named, body.as_bytes()).status, 200);
    }
    assert_eq!(connection.send("GET", "/health", &[], b"").status, 200);
    // What the template says about messages is told to the client.
    let body = json!({"messages": message()}).to_string();
    let key = "Authorization: Bearer first";
    let response = connection.send("POST", CHAT, &[json, key], body.as_bytes());
    assert_eq!(response.status, 400);
    assert!(response.body.contains("Only knights may speak."), "{}", response.body);
}
