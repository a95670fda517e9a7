//! Conversations outlive slots and servers: what was processed is saved, and changes nothing about
//! the answers.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::serve::{
    asking::{CHAT, MODEL, TEMPLATE, TEXT, cold, conversation, usage},
    client::Server,
};

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}

fn files(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn start(folder: &Path, args: &[&str]) -> Server {
    let fixed = ["-m", MODEL, "--chat-template-file", TEMPLATE, "--session-dir"];
    Server::start(&[&fixed[..], &[folder.to_str().unwrap()], args].concat())
}

/// The same tokens, and probabilities but for rounding: prompts are cut otherwise.
#[track_caller]
fn same(answer: &Value, expected: &Value) {
    let (ours, theirs) = (&answer["choices"][0], &expected["choices"][0]);
    assert_eq!(ours["text"], theirs["text"]);
    assert_eq!(ours["message"], theirs["message"]);
    let logprobs = |choice: &Value| -> Vec<f64> {
        let all = choice["logprobs"]["token_logprobs"].as_array();
        all.into_iter().flatten().map(|value| value.as_f64().unwrap()).collect()
    };
    for (a, b) in logprobs(ours).iter().zip(logprobs(theirs)) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
}

/// A question about a text of `n` tokens.
fn about(n: u32, text: u32, question: u32) -> Value {
    let tokens: Vec<u32> = (0..n)
        .map(|i| (i * 53 + i / 7 * text) % 500)
        .chain((0..40).map(|i| (i * question) % 500))
        .collect();
    json!({"prompt": tokens, "max_tokens": 4, "temperature": 0, "logprobs": 3, "ignore_eos": true})
}

/// The second question processes only what is new, before and after a restart.
fn a_long_text(name: &str, args: &[&str], n: u32) {
    let folder = folder(name);
    let start = || Server::start(&[args, &["--session-dir", folder.to_str().unwrap()]].concat());
    let (mut server, other) = (start(), Server::start(args));
    let first = server.ok(TEXT, &about(n, 1, 3));
    assert_eq!(usage(&first), (u64::from(n) + 40, 0));
    for (question, restart) in [(7, false), (11, true), (13, false), (17, true)] {
        if restart {
            server.end();
            server = start();
        }
        let body = about(n, 1, question);
        let answer = server.ok(TEXT, &body);
        let (prompt, cached) = usage(&answer);
        assert!(prompt - cached <= 40 + 512, "{cached} of {prompt}");
        same(&answer, &cold(&other, TEXT, &body));
    }
}

#[test]
fn a_long_text_is_processed_once() {
    a_long_text("long-text", &["-m", MODEL, "-c", "8192"], 4000);
}

/// `cargo test --release --test all -- --ignored a_text_of_32k`
#[test]
#[ignore = "minutes without --release"]
fn a_text_of_32k_is_processed_once() {
    a_long_text("text-32k", &["-c", "40960"], 32_768);
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    let folder = folder("conversation");
    let other = Server::start(&["-m", MODEL, "--chat-template-file", TEMPLATE]);
    let mut server = None::<Server>;
    conversation(&"Tell me all that you know. ".repeat(100), |body| {
        server.take().into_iter().for_each(Server::end);
        let answer = server.insert(start(&folder, &[])).ok(CHAT, body);
        same(&answer, &cold(&other, CHAT, body));
        answer
    });
    // One conversation, one file.
    server.into_iter().for_each(Server::end);
    assert_eq!(files(&folder).len(), 1);
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let folder = folder("slots");
    let server = start(&folder, &["-np", "2"]);
    let act = |slot: &str, action: &str, name: &str| {
        server.post(&format!("/slots/{slot}?action={action}"), &json!({"filename": name}))
    };
    assert_eq!(act("0", "save", "x").status, 400, "there is nothing in it");
    let mut body = about(300, 1, 3);
    body["id_slot"] = 0.into();
    let first = server.ok(TEXT, &body);
    let saved = act("0", "save", "x").json();
    // The prompt and what was generated, but for the last token.
    assert_eq!((&saved["n_saved"], &saved["filename"]), (&json!(343), &json!("x")));
    assert_eq!(saved["n_written"], fs::metadata(folder.join("x")).unwrap().len());
    assert!(saved["timings"]["save_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(act("0", "erase", "").json(), json!({"id_slot": 0, "n_erased": 343}));
    assert_eq!(server.get("/slots").json()[0]["n_tokens"], 0);
    // Onto the other slot.
    let restored = act("1", "restore", "x").json();
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&json!(343), &saved["n_written"]));
    body["id_slot"] = 1.into();
    let again = server.ok(TEXT, &body);
    assert_eq!((usage(&again), &again["choices"]), ((340, 339), &first["choices"]));

    for name in ["", "..", "../x", "a/b", "/etc/passwd", ".x", "a\\b", "a\0b"] {
        for action in ["save", "restore"] {
            let response = act("0", action, name);
            assert_eq!(
                (response.status, &response.json()["error"]["param"]),
                (400, &json!("filename")),
                "{name:?}"
            );
        }
    }
    for name in [json!(1), json!("../x"), json!("")] {
        let body = json!({"prompt": "Hi", "session": name});
        assert_eq!(server.post(TEXT, &body).json()["error"]["param"], "session", "{name}");
    }
    assert_eq!(act("0", "restore", "none").status, 404);
    for (slot, action) in [("2", "save"), ("-1", "erase"), ("x", "erase"), ("0", "burn"), ("0", "")]
    {
        assert_eq!(act(slot, action, "x").status, 400, "{slot} {action}");
    }
    // What is damaged or something else is refused, and nothing is left in the slot.
    let mut bytes = fs::read(folder.join("x")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(folder.join("y"), &bytes).unwrap();
    let refused = act("1", "restore", "y");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("is damaged: "), "{}", refused.body);
    assert_eq!(server.get("/slots").json()[1]["n_tokens"], 0);
    fs::write(folder.join("notes"), "Buy milk.").unwrap();
    assert_eq!(server.ok(TEXT, &body)["choices"], first["choices"]);
    for action in ["save", "restore"] {
        assert!(act("1", action, "notes").body.contains("is not a session file"));
    }
    assert_eq!(fs::read(folder.join("notes")).unwrap(), b"Buy milk.");

    let without = Server::start(&["-m", MODEL]);
    let path = "/slots/0?action=save";
    assert_eq!(without.post(path, &json!({"filename": "x"})).status, 501);
    assert_eq!(without.post("/slots/0?action=erase", &json!({})).status, 200);
    assert_eq!(without.get("/conversations").status, 501);
    assert_eq!(without.post(TEXT, &json!({"prompt": "Hi", "session": "x"})).status, 501);
}

/// One slot, and more conversations than one.
#[test]
fn conversations_take_turns_on_a_slot() {
    let folder = folder("turns");
    let server = start(&folder, &[]);
    let ask = |text: u32, question: u32, session: &str| {
        let mut body = about(1500, text, question);
        if !session.is_empty() {
            body["session"] = session.into();
        }
        usage(&server.ok(TEXT, &body)).1
    };
    assert_eq!((ask(1, 3, ""), ask(2, 3, "named")), (0, 0));
    assert_eq!(files(&folder).len(), 1, "the first made room");
    assert!(ask(1, 5, "") > 900);
    assert_eq!(files(&folder).len(), 2);
    assert!(folder.join("named.auto").exists());
    assert!(ask(2, 7, "named") > 900);
    // A short one is not worth a file, nor is the file worth reading for it.
    assert_eq!(usage(&server.ok(TEXT, &about(20, 3, 3))).1, 0);
    assert_eq!(files(&folder).len(), 2);
    // Forgotten on the disk and in the slot.
    assert!(ask(2, 9, "named") > 900);
    let gone = server.connect().send("DELETE", "/conversations/named", &[], b"");
    assert_eq!(gone.status, 200, "{}", gone.body);
    assert!(!folder.join("named.auto").exists());
    assert_eq!(ask(2, 9, ""), 0);
    server.end();

    // The oldest make room for the newest.
    let server = start(&folder, &["--session-space", "1"]);
    server.ok(TEXT, &about(1500, 8, 3));
    server.end();
    assert_eq!(files(&folder).len(), 1);
}

#[test]
fn the_texts_of_conversations_are_kept() {
    let folder = folder("texts");
    let server = start(&folder, &[]);
    let put = |id: &str, body: &Value| {
        let headers = ["Content-Type: application/json"];
        let path = format!("/conversations/{id}");
        server.connect().send("PUT", &path, &headers, body.to_string().as_bytes())
    };
    let list = || server.get("/conversations").json()["conversations"].clone();
    assert_eq!(list(), json!([]));
    let one = json!({"id": "one", "title": "One", "changed": 1, "messages": [{"role": "user"}]});
    let two = json!({"id": "two", "title": "Two", "changed": 2, "messages": []});
    assert_eq!((put("one", &one).status, put("two", &two).status), (200, 200));
    let about = |value: &Value| json!({"id": value["id"], "title": value["title"], "changed": value["changed"]});
    assert_eq!(list(), json!([about(&two), about(&one)]));
    assert_eq!(server.get("/conversations/one").json(), one);
    assert_eq!(server.get("/conversations/three").status, 404);
    for id in ["..", ".x", "a%2Fb", "%2e%2e%2fx"] {
        assert!([400, 404].contains(&put(id, &one).status), "{id}");
        assert!([400, 404].contains(&server.get(&format!("/conversations/{id}")).status), "{id}");
    }
    assert_eq!(put("one", &json!([1])).status, 400);
    assert_eq!(server.connect().send("DELETE", "/conversations/one", &[], b"").status, 200);
    assert_eq!(list(), json!([about(&two)]));
    server.end();
    let server = start(&folder, &[]);
    assert_eq!(server.get("/conversations/two").json(), two);
}
