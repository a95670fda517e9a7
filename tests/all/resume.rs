//! `engine run` and `engine chat` with `--session`: what a file holds is not processed again.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-qwen35.gguf");
/// Drops the thinking of earlier turns, as Qwen's do.
const TEMPLATE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat/fixture-template.jinja");

fn command(name: &str, session: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    command.args([name, "-m", MODEL, "--chat-template-file", TEMPLATE, "--temp", "0"]);
    command.arg("--session").arg(session);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    // One that refuses its flags may have ended before.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn good(output: Output) -> (String, String) {
    // Models may generate parts of characters.
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, log) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{log}");
    (out, log)
}

fn path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn a_prompt_is_not_processed_twice() {
    let file = path("twice.session");
    let question = "What is all this about? ".repeat(30);
    let ask = |question: &str| {
        let mut run = command("run", &file);
        run.args(["-n", "8", "--ignore-eos", "--json", "-p", question]);
        let (out, _) = good(with_input(run, ""));
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let first = ask(&question);
    assert_eq!(first["cached_tokens"], 0);
    let again = ask(&question);
    let all = first["prompt_tokens"].as_u64().unwrap();
    let cached = again["cached_tokens"].as_u64().unwrap();
    assert!(cached > all - 16 && cached < all, "{cached} of {all}");
    assert_eq!(
        (&again["tokens"], &again["prompt_tokens"]),
        (&first["tokens"], &first["prompt_tokens"])
    );
    // Another question is one of its own.
    assert!(ask("Who?")["cached_tokens"].as_u64().unwrap() < 16);
}

#[test]
fn a_conversation_goes_on_where_it_ended() {
    let talk = |file: &Path, input: &str| {
        let mut chat = command("chat", file);
        chat.args(["-n", "12", "--ignore-eos"]);
        good(with_input(chat, input))
    };
    let (at_once, _) = talk(&path("at-once.session"), "Tell me a story.\nAnd then?\nWhy?\n");
    let parts = path("parts.session");
    let (first, log) = talk(&parts, "Tell me a story.\n");
    assert!(log.lines().last().unwrap().starts_with("session: "), "{log}");
    let (then, log) = talk(&parts, "And then?\n");
    assert!(log.contains("goes on after 2 messages") && log.contains(" reused)"), "{log}");
    let (why, log) = talk(&parts, "Why?\n");
    assert!(log.contains("goes on after 4 messages") && log.contains(" reused)"), "{log}");
    assert_eq!(first + &then + &why, at_once);
    // One that `run` has begun is gone on with, too.
    let begun = path("begun.session");
    let mut run = command("run", &begun);
    run.args(["-n", "12", "--ignore-eos", "-p", "Tell me a story."]);
    let (begin, _) = good(with_input(run, ""));
    assert_eq!(begin + &talk(&begun, "And then?\nWhy?\n").0, at_once);
    // Other instructions take the place of those that were kept.
    let mut chat = command("chat", &begun);
    chat.args(["-n", "4", "--ignore-eos", "-sys", "Be brief."]);
    let (_, log) = good(with_input(chat, "Now?\n"));
    assert!(log.contains("processed anew") || !log.contains(" reused)"), "{log}");
    let (_, log) = talk(&begun, "");
    assert!(log.contains("goes on after 9 messages"), "{log}");
}

#[test]
fn a_file_that_does_not_fit_is_said_and_replaced_and_one_of_something_else_stays() {
    let file = path("damaged.session");
    let ask = |args: &[&str]| {
        let mut run = command("run", &file);
        run.args(["-n", "4", "--ignore-eos", "-p", "Hello?"]).args(args);
        with_input(run, "")
    };
    let (text, _) = good(ask(&[]));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&file, &bytes).unwrap();
    let (again, log) = good(ask(&[]));
    assert!(log.contains("is damaged: ") && log.contains("it is replaced when this ends"), "{log}");
    assert_eq!(again, text);
    let (_, log) = good(ask(&["-ctk", "f32"]));
    assert!(log.contains("was saved with another type of keys: f16, where this one is f32"));
    // Nothing was processed that could take its place.
    let saved = fs::read(&file).unwrap();
    let output = ask(&["-c", "4"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is left as it was"));
    assert!(fs::read(&file).unwrap() == saved);
    fs::write(&file, "Buy milk.").unwrap();
    let output = ask(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is not a session file"));
    assert_eq!(fs::read(&file).unwrap(), b"Buy milk.");
    let nowhere = with_input(command("run", Path::new("/no/such/folder/x")), "Hello?");
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("there is no /no/such/folder"));
}

/// Whether an answer is coming, or nothing was typed yet.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_session() {
    let interrupt = |child: &std::process::Child| {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    let file = path("interrupted.session");
    let mut run = command("run", &file);
    run.args(["-p", "Hello?", "--special", "--ignore-eos", "-n", "3000", "-c", "4000"]);
    let mut child = run.spawn().unwrap();
    drop(child.stdin.take());
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let (_, log) = good(child.wait_with_output().unwrap());
    assert!(log.contains("| cancelled |") && log.contains("session: "), "{log}");
    let kept = fs::metadata(&file).unwrap().modified().unwrap();
    let mut child = command("chat", &file).spawn().unwrap();
    let mut log = child.stderr.take().unwrap();
    let mut said = String::new();
    while !said.contains("goes on after 2 messages") {
        let mut bytes = [0; 256];
        let n = log.read(&mut bytes).unwrap();
        said += str::from_utf8(&bytes[..n]).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    interrupt(&child);
    log.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), kept, "nothing was said");
}
