//! Clients that others have written, where they are installed.

use std::process::Command;

use crate::{common::skipped, serve::client::Server};

#[test]
fn the_openai_client_of_python_works() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python).args(["-c", "import openai"]).output();
    if !there.is_ok_and(|run| run.status.success()) {
        skipped(format_args!("{python} has no package openai"));
        return;
    }
    let server = Server::start(&["--parallel", "8", "-c", "2048"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/serve/clients/openai_client.py");
    let address = format!("http://{}", server.address);
    let run = Command::new(python).args([script, &address]).output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&text));
}
