//! Many clients at once, and those that leave.

use std::thread;

use serde_json::{Value, json};

use crate::serve::client::Server;

const TEXT: &str = "/v1/completions";

/// A request that takes much longer than a test.
fn endless(stream: bool) -> Value {
    json!({"prompt": "Once", "ignore_eos": true, "stream": stream, "max_tokens": 100_000})
}

#[test]
fn slots_are_shared_freed_and_refused() {
    let server = Server::start(&["--parallel", "3", "--queue", "3"]);
    parallel_clients_get_what_each_gets_alone(&server);
    a_long_prompt_does_not_hold_up_others(&server);
    streams_do_not_hold_up_a_prompt(&server);
    clients_that_leave_free_their_slots(&server);
    a_full_queue_refuses(&server);
}

fn parallel_clients_get_what_each_gets_alone(server: &Server) {
    let long = "And it came to pass in those days, ".repeat(40);
    let prompts = ["Once upon a time", "In the beginning", long.as_str()];
    let ask = |prompt: &str| {
        let body =
            json!({"prompt": prompt, "max_tokens": 24, "temperature": 0, "cache_prompt": false});
        server.ok(TEXT, &body)["choices"][0]["text"].clone()
    };
    let alone = prompts.map(ask);
    thread::scope(|scope| {
        let together = prompts.map(|prompt| scope.spawn(move || ask(prompt)));
        let together = together.map(|thread| thread.join().unwrap());
        assert_eq!(together, alone);
    });
    assert!(server.metric("llamacpp:n_busy_slots_per_decode") > 1.0, "each went alone");
}

fn a_long_prompt_does_not_hold_up_others(server: &Server) {
    let long = json!({"prompt": vec![7; 4000], "max_tokens": 1, "cache_prompt": false});
    let short = json!({"prompt": "Once", "max_tokens": 16, "ignore_eos": true});
    thread::scope(|scope| {
        let long = scope.spawn(|| server.ok(TEXT, &long));
        server.eventually(|| server.busy() == 1);
        server.ok(TEXT, &short);
        assert!(!long.is_finished(), "the short one has waited for the long one");
        long.join().unwrap();
    });
}

fn streams_do_not_hold_up_a_prompt(server: &Server) {
    let mut clients: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for client in &mut clients {
        let body = endless(true).to_string();
        client.write("POST", TEXT, &["Content-Type: application/json"], body.as_bytes());
    }
    server.eventually(|| server.busy() == 2);
    server.ok(TEXT, &json!({"prompt": vec![7; 1000], "max_tokens": 1, "cache_prompt": false}));
    assert_eq!(server.busy(), 2, "the streams have ended first");
    drop(clients);
    server.eventually(|| server.busy() == 0);
}

fn clients_that_leave_free_their_slots(server: &Server) {
    let memory = || server.metric("engine:device_memory_bytes");
    let mut before = None;
    for round in 0..10 {
        let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for (i, client) in clients.iter_mut().enumerate() {
            let stream = (round + i) % 2 == 0;
            let body = endless(stream).to_string();
            client.write("POST", TEXT, &["Content-Type: application/json"], body.as_bytes());
            if stream {
                assert!(client.read_some(200).starts_with("HTTP/1.1 200"));
            }
        }
        server.eventually(|| server.busy() == 3);
        drop(clients);
        server.eventually(|| server.busy() == 0);
        // The first round has made the buffers that later ones use.
        let now = memory();
        assert_eq!(*before.get_or_insert(now), now, "round {round}");
    }
}

fn a_full_queue_refuses(server: &Server) {
    let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
    let body = endless(false).to_string();
    for (i, client) in clients.iter_mut().enumerate() {
        client.write("POST", TEXT, &["Content-Type: application/json"], body.as_bytes());
        // One after the other, so that the queue does not fill before the slots.
        server.eventually(|| server.busy() == (i + 1).min(3));
    }
    server.eventually(|| server.metric("llamacpp:requests_deferred") == 3.0);
    let refused = server.post(TEXT, &endless(false));
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(refused.json()["error"]["type"], "unavailable_error");
    assert_eq!(server.get("/health").status, 200);
    // One that leaves the queue makes room.
    clients.pop();
    let body = endless(true).to_string();
    server.eventually(|| {
        let mut next = server.connect();
        next.write("POST", TEXT, &["Content-Type: application/json"], body.as_bytes());
        next.read_some(12) == "HTTP/1.1 200"
    });
    drop(clients);
    server.eventually(|| server.busy() == 0);
    assert_eq!(server.post(TEXT, &json!({"prompt": "Once", "max_tokens": 1})).status, 200);
}
