//! The command line as a user meets it: what is accepted, what is refused and how, exit statuses.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama.gguf");

/// `engine` with `args` and an empty stdin.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    command.args(args).stdin(Stdio::null());
    command
}

struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

fn ended(output: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let ended = Ended {
        status: output.status.code().expect("ends by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    };
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

fn engine(args: &[&str]) -> Ended {
    ended(command(args).output().unwrap())
}

/// The status and the last line of stderr, which has to name `word`; stdout stays empty.
#[track_caller]
fn refused(args: &[&str], status: i32, word: &str) {
    let ended = engine(args);
    assert_eq!((ended.status, ended.stdout.as_str()), (status, ""), "{args:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(word), "{args:?} does not name {word}: {}", ended.stderr);
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"))
}

#[test]
fn wrong_usage_is_status_2_and_named() {
    refused(&[], 2, "Usage");
    refused(&["what"], 2, "what");
    refused(&["logits", "--tokens", "1", "-o", "/nowhere/x"], 2, "--model");
    let wrong: &[(&[&str], &str)] = &[
        (&["--no-such-flag"], "--no-such-flag"),
        (&["-xyz"], "-xyz"),
        (&["-np", "4"], "-np"),
        (&["-n", "many"], "--predict"),
        (&["-n", "-2"], "--predict"),
        (&["-p"], "--prompt"),
        (&["-ub", "0"], "--ubatch-size"),
        (&["-c", "4294967295"], "--ctx-size"),
        (&["--rope-freq-scale", "0"], "--rope-freq-scale"),
        (&["--kv-staging", "4095K"], "--kv-staging"),
        (&["-p", "a", "-f", "b"], "--file"),
        (&["--tokens", "1,x"], "--tokens"),
        (&["--tokens", "1", "--system-prompt", "x"], "--system-prompt"),
        (&["-kvo"], "host memory"),
        (&["-hf", "user/model"], "-m"),
        (&["--mmproj", "x.gguf"], "images"),
        (&["-ctk", "q9_9"], "--cache-type-k"),
        (&["-ctv", "q5_1"], "f32, f16, bf16, q8_0, q4_0"),
        (&["-ngl", "some"], "--n-gpu-layers"),
        (&["--logit-bias", "5"], "--logit-bias"),
        (&["--reasoning-budget", "100"], "--reasoning-budget"),
        (&["--chat-template-kwargs", "[1]"], "--chat-template-kwargs"),
        (&["-cnv", "--json"], "--json"),
        (&["--temp", "nan", "-p", "a"], "--temp"),
        (&["--top-p", "1.5", "-p", "a"], "--top-p"),
        (&["--min-p", "-1", "-p", "a"], "--min-p"),
        (&["--typical", "2", "-p", "a"], "--typical"),
        (&["--repeat-penalty", "0", "-p", "a"], "--repeat-penalty"),
        (&["--repeat-last-n", "-2", "-p", "a"], "--repeat-last-n"),
        (&["--seed", "-2", "-p", "a"], "--seed"),
        (&[], "no prompt"),
    ];
    for (args, word) in wrong {
        refused(&[&["run", "-m", MODEL], *args].concat(), 2, word);
    }
    // Whether a cache type is for this model's heads is known before anything is loaded.
    refused(&["run", "-m", MODEL, "-p", "a", "-ctk", "q8_0"], 2, "cache type q8_0");
    refused(&["chat", "-m", MODEL, "--raw"], 2, "--raw");
    refused(&["logits", "-m", MODEL, "--tokens", "1"], 2, "--output");
    let logits = ["logits", "-m", MODEL, "--tokens", "1,2", "-o", "/nowhere/x"];
    refused(&[&logits[..], &["--positions", "2"]].concat(), 2, "--positions");
    refused(&[&logits[..], &["--positions", "some"]].concat(), 2, "--positions");
    refused(&[&logits[..], &["--chunk", "0"]].concat(), 2, "--chunk");
}

#[test]
fn wrong_files_and_devices_are_status_1_and_named() {
    let (empty, text) = (scratch("empty.gguf"), scratch("text.gguf"));
    fs::write(&empty, "").unwrap();
    fs::write(&text, "not a model at all, but long enough for a header").unwrap();
    for file in [Path::new("/nowhere/model.gguf"), Path::new("/"), &empty, &text] {
        let file = file.to_str().unwrap();
        refused(&["run", "-m", file, "-p", "hi"], 1, file);
        refused(&["inspect", file], 1, file);
    }
    let cut = scratch("cut.gguf");
    let bytes = fs::read(MODEL).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    refused(&["run", "-m", cut.to_str().unwrap(), "-p", "hi"], 1, "cut.gguf");
    refused(&["run", "-m", MODEL, "-p", "hi", "--device", "no such"], 1, "no such");
    refused(&["devices", "--device", "99"], 1, "99");
    refused(&["devices", "--device", ""], 1, "names no adapter");
    refused(&["run", "-m", MODEL, "-f", "/nowhere/prompt"], 1, "/nowhere/prompt");
}

#[test]
fn help_and_version_are_results() {
    for args in [&["--help"][..], &["run", "--help"], &["logits", "-h"], &["--version"]] {
        let ended = engine(args);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        assert!(ended.stdout.contains("engine"), "{}", ended.stdout);
    }
}

#[test]
fn devices_tells_the_choice_and_its_reason() {
    let ended = engine(&["devices", "--json"]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let chosen = report["chosen"].as_u64().unwrap() as usize;
    assert_eq!(report["adapters"][chosen]["index"], chosen);
    assert!(report["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    let name = report["adapters"][chosen]["name"].as_str().unwrap();
    let table = engine(&["devices", "--device", name]).stdout;
    assert!(table.contains(&format!("chosen: --device {name}")), "{table}");
}

#[test]
fn variables_count_unless_a_flag_is_there() {
    let run = |args: &[&str]| {
        let all = [&["run", "-m", MODEL, "--tokens", "1,2,3,4", "-n", "0"], args].concat();
        ended(command(&all).env("LLAMA_ARG_CTX_SIZE", "3").output().unwrap())
    };
    let ended = run(&[]);
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.contains('4') && ended.stderr.contains('3'), "{}", ended.stderr);
    assert_eq!(run(&["-c", "4"]).status, 0);
}

/// The flags of the spec's seed commands, as far as `run` has them.
#[test]
fn pasted_commands_work() {
    let pasted = [
        "--ctx-size 65536 --cache-type-k f16 --cache-type-v f16 --reasoning-budget 0 \
         --n-gpu-layers 99 --no-mmap",
        "-c 65536 -fa --cache-type-k f16 --cache-type-v f16",
        "-ngl 99 -fa 1 -b 8192",
        "-ngl all -fa on -ub 64 -t 8 -s 1 --temp 0.7 --top-k 20 --top-p 0.8 --min-p 0 -st",
    ];
    for line in pasted {
        let flags: Vec<_> = line.split_whitespace().collect();
        let ended = engine(&[&["run", "-m", MODEL, "-p", "Hi", "-n", "1"], &flags[..]].concat());
        assert_eq!(ended.status, 0, "{line}: {}", ended.stderr);
        let notices = ended.stderr.lines().filter(|line| line.contains(" is ignored: ")).count();
        let expected = flags.iter().filter(|f| ["-fa", "--no-mmap", "-t"].contains(f)).count();
        assert_eq!(notices, expected, "{}", ended.stderr);
    }
}

#[test]
fn a_reader_that_leaves_is_a_failure_without_a_panic() {
    let args = ["run", "-m", MODEL, "--tokens", "1", "-n", "500", "--ignore-eos", "--special"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = ended(child.wait_with_output().unwrap());
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.contains("stdout"), "{}", ended.stderr);
}

#[test]
fn a_conversation_reads_lines_and_remembers() {
    let args = ["chat", "-m", MODEL, "-n", "4", "--temp", "0"];
    let mut child = command(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "one\ntwo\n/clear\n\"\"\"one\"\"\"\n/bye\nnever\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let ended = ended(child.wait_with_output().unwrap());
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let prompts: Vec<usize> = ended
        .stderr
        .lines()
        .filter_map(|line| line.split_once("| prompt ")?.1.split_once(" tokens")?.0.parse().ok())
        .collect();
    let [first, second, third] = prompts[..] else { panic!("three turns: {}", ended.stderr) };
    assert!(second > first + 4, "the second prompt holds the first turn: {prompts:?}");
    assert_eq!(first, third, "forgotten after /clear");
}
