//! The page at `/`: what it may load, and a browser that uses it.

use std::{fs, process::Command};

use crate::{common::skipped, serve::client::Server};

#[test]
fn the_page_needs_no_key_and_loads_nothing_else() {
    let server = Server::start(&["--api-key", "secret"]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    // All that it names is there, and nothing of it is on another host.
    let (mut names, mut waiting) = (Vec::new(), vec![(String::from("/"), page.body)]);
    while let Some((of, text)) = waiting.pop() {
        for part in text.split(['"', '\'']) {
            let name = part.strip_prefix("./").unwrap_or(part);
            let local = name.ends_with(".css") || name.ends_with(".js");
            if local && !names.contains(&name.to_owned()) {
                names.push(name.to_owned());
                let file = server.get(&format!("/{name}"));
                assert_eq!(file.status, 200, "{name} of {of}");
                waiting.push((name.to_owned(), file.body));
            }
        }
        assert!(!text.contains("src=\"http") && !text.contains("url(http"), "{of}");
    }
    assert_eq!(names.len(), 6, "{names:?}");
    assert_eq!(server.get("/props").status, 401);
    if browser_is_there() {
        let address = format!("http://{}", server.address);
        drive("page.mjs", &[&address, "", "secret"]);
    }
}

#[test]
fn conversations_that_the_server_keeps_are_in_every_browser() {
    if browser_is_there() {
        let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/page");
        let _ = fs::remove_dir_all(folder);
        let server = Server::start(&["--session-dir", folder]);
        drive("kept.mjs", &[&format!("http://{}", server.address)]);
    }
}

#[track_caller]
fn drive(script: &str, args: &[&str]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/serve/browser/");
    let run = node().arg(format!("{path}{script}")).args(args).output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&text));
}

/// Node.js in the folder where `npm install playwright-core` is expected; `NODE_PATH` works, too.
fn node() -> Command {
    let mut node = Command::new("node");
    node.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/serve/browser"));
    node
}

fn browser_is_there() -> bool {
    let check = "const { existsSync } = require('fs'); require('playwright-core'); \
                 process.exit(existsSync(process.env.CHROMIUM ?? '/usr/bin/chromium') ? 0 : 1)";
    let there = node().args(["-e", check]).output().is_ok_and(|run| run.status.success());
    if !there {
        skipped("no Node.js with playwright-core, or no Chromium (see page.mjs)");
    }
    there
}
