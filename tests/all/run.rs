//! `engine run` and `engine logits` on a tiny model: output, limits, sampling flags, reports.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
};

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama.gguf");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// stdout of a run that succeeds.
#[track_caller]
fn run(args: &[&str]) -> String {
    let output = command(&[&["run", "-m", MODEL], args].concat()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The object of `--json`.
#[track_caller]
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&run(&[args, &["--json"]].concat())).unwrap()
}

const PROMPT: [&str; 4] = ["--tokens", "72,101,108,108,111", "-n", "24"];

/// Template, tokenizer, forward pass and choice together: the tokens that the reference chose.
#[test]
fn a_chat_prompt_is_answered_as_the_reference_does() {
    for (model, prompt) in [("tiny-llama", "What is 12 + 30?"), ("tiny-qwen35", "Hello!")] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let expected = fs::read(fixtures.join(format!("expected/{model}.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let expected = &expected["prompts"][5];
        assert!(expected["text"].as_str().unwrap().contains(prompt));
        let file = fixtures.join(format!("models/{model}.gguf"));
        let fixed =
            ["run", "-n", "32", "--temp", "0", "--ignore-eos", "--json", "-p", prompt, "-m"];
        let output = command(&fixed).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["prompt_tokens"], expected["ids"].as_array().unwrap().len());
        assert_eq!(report["tokens"], expected["greedy"], "{model}");
    }
}

#[test]
fn the_report_has_exactly_these_fields() {
    let report = json(&[&PROMPT[..], &["--temp", "0", "--ignore-eos"]].concat());
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        keys(&report),
        [
            "tokens",
            "text",
            "prompt_tokens",
            "cached_tokens",
            "generated_tokens",
            "finish_reason",
            "seed",
            "timings",
            "memory",
            "attention",
            "kv",
            "paths",
            "device"
        ]
    );
    assert_eq!(report["prompt_tokens"], 5);
    assert_eq!(report["generated_tokens"], 24);
    assert_eq!(report["tokens"].as_array().unwrap().len(), 24);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(keys(&report["timings"]), ["load", "prefill", "decode"]);
    for phase in ["prefill", "decode"] {
        assert!(report["timings"][phase]["ms"].as_f64().unwrap() > 0.0);
        assert!(report["timings"][phase]["tok_s"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(keys(&report["memory"]), ["device", "host", "process"]);
    let device = &report["memory"]["device"];
    let kinds =
        ["weights", "kv", "index_raw", "index_pooled", "state", "scratch", "staging", "total"];
    assert_eq!(keys(device), kinds);
    assert_eq!(report["memory"]["host"]["total"], 0);
    // All tensors of the file, nearly: some small ones are padded, some kept by the host.
    let weights = device["weights"].as_f64().unwrap();
    let file = fs::metadata(MODEL).unwrap().len() as f64;
    assert!((0.9..1.1).contains(&(weights / file)), "{weights} of {file}");
    if cfg!(target_os = "linux") {
        let host = |key| report["memory"]["process"][key].as_u64().unwrap();
        assert!(host("peak") >= host("resident") && host("resident") > host("files"));
    }
    assert!(!report["paths"].as_array().unwrap().is_empty());
    // Queries 1 to 28 of each attention layer, the last token's logits being enough.
    let reads = &report["attention"];
    let queries = reads["full_queries"].as_u64().unwrap();
    assert!(queries > 0 && queries.is_multiple_of(28));
    assert_eq!(reads["sparse_queries"], 0);
    assert_eq!(reads["most_tokens"], 28);
    assert_eq!(reads["average_tokens"], 14.5);
    assert_eq!(reads["tokens"], 29 * queries / 2);
}

#[test]
fn streamed_text_is_the_reported_text() {
    let args = [&PROMPT[..], &["--temp", "0", "--ignore-eos"]].concat();
    let report = json(&args);
    assert_eq!(run(&args), format!("{}\n", report["text"].as_str().unwrap()));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let args = [&PROMPT[..], &["--temp", "0", "--ignore-eos"]].concat();
    let report = json(&args);
    let text = report["text"].as_str().unwrap();
    // A few characters from the middle of the text, as they first occur in it.
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let expected = &text[..text.find(&stop).unwrap()];
    let stopped = json(&[&args[..], &["--stop", &stop, "--no-escape"]].concat());
    assert_eq!(stopped["text"], expected);
    assert_eq!(stopped["finish_reason"], "stop");
    let flags = ["-r", &stop, "--no-escape"];
    assert_eq!(run(&[&args[..], &flags].concat()), format!("{expected}\n"));
}

#[test]
fn nothing_is_generated_with_0_and_no_rate_made_up() {
    let report = json(&["--tokens", "1,2", "-n", "0"]);
    assert_eq!(report["tokens"], json!([]));
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["timings"]["decode"]["tok_s"], Value::Null);
    let one = json(&["--tokens", "1,2", "-n", "1"]);
    assert_eq!(one["generated_tokens"], 1);
    assert_eq!(one["timings"]["decode"]["tok_s"], Value::Null);
}

#[test]
fn the_context_bounds_prompt_and_generation() {
    let args = ["--tokens", "1,2,3,4,5,6,7", "--ignore-eos", "-c"];
    for (context, generated) in [("7", 1), ("8", 2), ("10", 4)] {
        let report = json(&[&args[..], &[context]].concat());
        assert_eq!(report["generated_tokens"], generated, "context {context}");
        assert_eq!(report["finish_reason"], "length");
    }
    let output = command(&[&["run", "-m", MODEL], &args[..], &["6"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let error = stderr.lines().last().unwrap();
    assert!(error.contains("7 tokens") && error.contains('6'), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_is_wrong_usage() {
    for command_of in [&["run"][..], &["logits", "-o", "/nowhere/x"]] {
        let args = [command_of, &["-m", MODEL, "--tokens", "1,999999"]].concat();
        let output = command(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().contains("--tokens names 999999"));
    }
}

#[test]
fn stdin_follows_the_prompt() {
    let mut child = command(&["run", "-m", MODEL, "-p", "Sum up:", "-n", "4", "--temp", "0"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"some text").unwrap();
    let piped = child.wait_with_output().unwrap();
    assert!(piped.status.success());
    let whole = run(&["-p", r"Sum up:\n\nsome text", "-n", "4", "--temp", "0"]);
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), whole);
}

/// Sampling without any filter, seeded.
const PLAIN: [&str; 12] = [
    "--temp",
    "1.5",
    "--top-k",
    "0",
    "--top-p",
    "1",
    "--min-p",
    "0",
    "--seed",
    "7",
    "--ignore-eos",
    "--json",
];

fn tokens(flags: &[&str]) -> Value {
    let args = [&PROMPT[..], &PLAIN, flags].concat();
    serde_json::from_str::<Value>(&run(&args)).unwrap()["tokens"].clone()
}

#[test]
fn every_sampling_flag_has_an_effect() {
    let plain = tokens(&[]);
    let first = format!("{}-inf", plain[0]);
    let flags = [
        ["--temp", "0.4"],
        ["--top-k", "3"],
        ["--top-p", "0.3"],
        ["--min-p", "0.5"],
        ["--typical", "0.2"],
        ["--top-nsigma", "0.5"],
        ["--repeat-penalty", "3"],
        ["--presence-penalty", "9"],
        ["--frequency-penalty", "9"],
        ["--seed", "8"],
        ["--logit-bias", &first],
    ];
    for flag in flags {
        assert_ne!(tokens_with(flag), plain, "{flag:?}");
    }
    let window = |n| tokens(&["--presence-penalty", "9", "--repeat-last-n", n]);
    assert_ne!(window("-1"), window("2"));
    assert_eq!(window("0"), plain);
}

/// `PLAIN` with one flag changed or added.
fn tokens_with([flag, value]: [&str; 2]) -> Value {
    let mut args: Vec<&str> = PROMPT.to_vec();
    let kept = PLAIN.iter().position(|&plain| plain == flag);
    args.extend(PLAIN.iter().enumerate().filter_map(|(i, &plain)| {
        (kept != Some(i) && kept.map(|k| k + 1) != Some(i)).then_some(plain)
    }));
    args.extend([flag, value]);
    serde_json::from_str::<Value>(&run(&args)).unwrap()["tokens"].clone()
}

#[test]
fn a_seed_reproduces_a_run_and_without_one_runs_differ() {
    let args = [&PROMPT[..], &["--temp", "2", "--top-k", "0", "--ignore-eos"]].concat();
    let (one, other) = (json(&args), json(&args));
    assert_ne!(one["tokens"], other["tokens"]);
    let seed = one["seed"].to_string();
    let again = json(&[&args[..], &["-s", &seed]].concat());
    assert_eq!(again["tokens"], one["tokens"]);
    assert_eq!(again["seed"], one["seed"]);
}

#[test]
fn the_traffic_of_keys_and_values_is_told() {
    let ids = (1..=30).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let args = ["run", "-m", MODEL, "--tokens", &ids, "-n", "3", "--ignore-eos", "--json"];
    let args = [&args[..], &["-ub", "10", "--kv-host", "on", "--kv-stats"]].concat();
    let output = command(&args).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let kv = &report["kv"];
    assert_eq!((&kv["ctx_tokens"], &kv["prefill"]["chunks"]), (&json!(32), &json!(3)));
    assert_eq!(kv["decode"]["steps"], 2);
    // The last two chunks stream what is before them, in the last layer the last one.
    let (layers, row) = (kv["layers"].as_u64().unwrap(), kv["row_bytes"].as_u64().unwrap());
    let streamed = kv["prefill"]["bytes_streamed"].as_u64().unwrap();
    assert_eq!(streamed, 20 * row + 10 * row / layers * (layers - 1));
    assert_eq!(kv["host_resident"], report["memory"]["host"]["total"]);
    // Every field of spec/kv-offload.md 6; times only where the device has timestamps.
    let is_timed = report["device"]["features"].to_string().contains("timestamps-inside-passes");
    let number = |value: &Value, keys: &[&str]| {
        keys.iter().for_each(|key| assert!(value[key].is_number(), "{key}: {value}"));
    };
    number(kv, &["ctx_tokens", "layers_qsa", "row_bytes", "bytes_written_host"]);
    number(kv, &["host_resident", "host_planned", "device_pooled", "device_pooled_planned"]);
    let decode = ["steps", "tokens_selected_avg", "tokens_selected_max", "bytes_gathered"];
    number(&kv["decode"], &decode);
    number(&kv["decode"], &["bytes_gathered_host", "bytes_per_step", "pool_scan_bytes"]);
    number(&kv["prefill"], &["chunks", "segments", "bytes_streamed", "bytes_naive", "ratio"]);
    for key in ["gather_ms", "GB/s"] {
        let found = kv["decode"][key].as_f64();
        assert_eq!(found.is_some_and(|x| x > 0.0), is_timed, "{key}: {found:?}");
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("kv prefill: 3 chunks"), "{stderr}");
}

#[test]
fn the_profile_lists_ops() {
    let args = ["run", "-m", MODEL, "--tokens", "1", "-n", "2", "--profile"];
    let output = command(&args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let rows: Vec<_> = stderr.lines().skip_while(|line| !line.starts_with("op ")).collect();
    assert!(rows.len() > 3 && rows.iter().any(|row| row.starts_with("total ")), "{stderr}");
}

/// `logits` f32 [positions][vocab] and `positions` of `engine logits` with `flags`.
fn logits(name: &str, flags: &[&str]) -> (Vec<Vec<f32>>, Vec<i64>) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.safetensors"));
    let fixed = ["logits", "-m", MODEL, "--tokens", "72,101,108,108,111", "-o"];
    let args = [&fixed[..], &[path.to_str().unwrap()], flags].concat();
    let output = command(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    assert!(!path.with_extension("safetensors.part").exists());
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (logits, positions) = (file.tensor("logits").unwrap(), file.tensor("positions").unwrap());
    assert_eq!((logits.dtype(), positions.dtype()), (Dtype::F32, Dtype::I64));
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(logits.data());
    let rows = values.chunks(logits.shape()[1]).map(<[f32]>::to_vec).collect();
    (rows, bytemuck::pod_collect_to_vec(positions.data()))
}

#[test]
fn logits_are_written_for_the_positions_asked_for() {
    let (all, positions) = logits("all", &[]);
    assert_eq!(positions, [0, 1, 2, 3, 4]);
    let (some, positions) = logits("some", &["--positions", "3,0,3"]);
    assert_eq!(positions, [0, 3]);
    assert!(some == [all[0].clone(), all[3].clone()], "the rows of positions 0 and 3");
    let (last, positions) = logits("last", &["--positions", "last"]);
    assert_eq!(positions, [4]);
    assert!(last == [all[4].clone()], "the row of the last position");

    let (stepwise, _) = logits("stepwise", &["--chunk", "1", "-ctk", "f32", "-ctv", "f32"]);
    for (a, b) in all.iter().flatten().zip(stepwise.iter().flatten()) {
        assert!((a - b).abs() < 0.05, "{a} {b}");
    }
    let best =
        |row: &[f32]| (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let report = json(&["--tokens", "72,101,108,108,111", "-n", "1", "--temp", "0"]);
    assert_eq!(report["tokens"], json!([best(&all[4])]));
}

/// `-o /dev/stdout`, or any other pipe, must not be replaced by a file.
#[cfg(unix)]
#[test]
fn logits_go_into_a_pipe() {
    let pipe = Path::new(env!("CARGO_TARGET_TMPDIR")).join("logits.fifo");
    let _ = fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    let args = ["logits", "-m", MODEL, "--tokens", "1,2", "--positions", "last", "-o"];
    let output = command(&args).arg(&pipe).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    let bytes = reader.join().unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().tensor("logits").unwrap().shape()[0], 1);
    fs::remove_file(pipe).unwrap();
}

/// Ctrl-C while text is coming ends the run well, with its timings.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_generation_cleanly() {
    let args = ["run", "-m", MODEL, "--tokens", "72", "--ignore-eos", "--special", "-n", "3000"];
    let mut child = command(&[&args[..], &["-c", "4000"]].concat()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.lines().last().unwrap().contains("| cancelled |"), "{stderr}");
}

#[test]
fn a_context_past_the_trained_one_is_allowed_and_said() {
    let notes = |args: &[&str]| {
        let fixed = ["run", "-m", MODEL, "--tokens", "1,2", "-n", "1", "--temp", "0"];
        let output = command(&fixed).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(notes(&["-c", "1000000"]).contains("quality is unknown"));
    assert!(!notes(&[]).contains("quality is unknown"));
    let stretched = ["--rope-scaling", "yarn", "--rope-scale", "1000", "-c", "1000000"];
    assert!(!notes(&stretched).contains("quality is unknown"));
}

/// Text before the end is printed, and the end is one sentence.
#[test]
fn a_cache_that_cannot_grow_ends_the_text_with_a_sentence() {
    let ids = (1..=4090).map(|id| (id % 250).to_string()).collect::<Vec<_>>().join(",");
    let fixed = ["run", "-m", MODEL, "--tokens", &ids, "--special", "-c", "100000", "--temp", "0"];
    let fixed = [&fixed[..], &["--ignore-eos", "--fit", "off", "--kv-host", "off"]].concat();
    let short = command(&fixed).args(["-n", "1", "--json"]).output().unwrap();
    let short: Value = serde_json::from_slice(&short.stdout).unwrap();
    let bytes = &short["memory"]["device"];
    // The first segments and, beside them, some but not as much again.
    let room = bytes["total"].as_u64().unwrap() + bytes["kv"].as_u64().unwrap() / 4;
    let args = ["-n", "100", "--device-memory", &room.to_string()];
    let output = command(&fixed).args(args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: memory: the context cannot grow"), "{last}");
    assert!(!output.stdout.is_empty(), "the tokens before are printed");
}
