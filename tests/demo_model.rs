//! The demo model is part of the program and computes what `models/selftest.json` expects of it.

mod common;

use common::expected::FLOAT32_LIMIT;
use engine::{
    Engine, EngineOptions, Gguf, demo,
    kv::KvType,
    ngram::{NgramTable, Storage},
    text::{EncodeOptions, Tokenizer, VocabSource},
};
use serde::Deserialize;
use std::{
    ops::ControlFlow,
    process::{Command, Output},
};

/// Largest allowed logit difference where keys and values are rounded to f16.
const F16_LIMIT: f32 = 0.02;

/// The parts of `models/selftest.json` used here; `models/demo/selftest.py` describes all.
#[derive(Deserialize)]
struct Selftest {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    text: String,
    ids: Vec<u32>,
    q8_0: Answer,
}

#[derive(Deserialize)]
struct Answer {
    greedy: Vec<u32>,
    /// Tokens before the first near tie.
    safe: usize,
    /// Id and logit after the last prompt token.
    top5_last: Vec<(u32, f32)>,
}

impl Answer {
    fn safe(&self) -> &[u32] {
        &self.greedy[..self.safe]
    }
}

fn prompts() -> Vec<Prompt> {
    let selftest: Selftest = serde_json::from_str(include_str!("../models/selftest.json")).unwrap();
    selftest.prompts
}

fn check(cache: KvType, limit: f32) {
    let options = EngineOptions { cache_k: cache, cache_v: cache, ..EngineOptions::default() };
    let mut engine = Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap();
    for Prompt { name, ids, q8_0: expected, .. } in prompts() {
        let mut sequence = engine.new_sequence().unwrap();
        engine.prefill(&mut sequence, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
        let logits = engine.logits(&sequence).unwrap();
        for (id, logit) in &expected.top5_last {
            let found = logits[*id as usize];
            assert!(
                (found - logit).abs() <= limit,
                "{cache:?}, {name}: logit of {id} is {found}, not {logit}"
            );
        }
        let mut tokens = Vec::new();
        while tokens.len() < expected.safe {
            let token = engine.argmax(&sequence).unwrap();
            tokens.push(token);
            engine.decode(&mut sequence, token).unwrap();
        }
        assert_eq!(tokens, expected.safe(), "{cache:?}, {name}");
    }
}

#[test]
fn selftest_prompts_are_answered_as_the_reference_does() {
    check(KvType::F32, FLOAT32_LIMIT as f32);
    check(KvType::F16, F16_LIMIT);
}

#[test]
fn the_tokenizer_is_that_of_the_training() {
    let vocab = VocabSource::from_gguf(&demo::open().unwrap()).unwrap();
    let tokenizer = Tokenizer::new(&vocab).unwrap();
    let options = EncodeOptions { add_special: true, parse_special: true };
    for Prompt { name, text, ids, .. } in prompts() {
        assert_eq!(tokenizer.encode(&text, options).unwrap(), ids, "{name}");
    }
}

/// Rows of the n-gram table are the same wherever they are read from, and only a copy takes memory.
#[test]
fn the_table_is_read_in_place() {
    let file = Gguf::open("models/demo-q8_0.gguf").unwrap();
    let embedded = demo::open().unwrap();
    let rows = [0, 1, 4000, 17, 16_000];
    let read = |gguf, storage| {
        let table = NgramTable::open(gguf, storage).unwrap();
        (table.request(&rows).unwrap().wait().unwrap(), table.resident_bytes())
    };
    let (expected, _) = read(&file, Storage::Disk);
    for storage in [Storage::Disk, Storage::Ram] {
        let (values, resident) = read(&embedded, storage);
        assert!(values == expected, "{storage:?}");
        assert_eq!(resident, 0, "{storage:?}");
    }
}

fn command(args: &[&str], model: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    command.env_remove("LLAMA_ARG_MODEL").envs(model.map(|file| ("LLAMA_ARG_MODEL", file)));
    command.args(args).output().unwrap()
}

#[test]
fn run_without_a_model_uses_it_and_says_so() {
    let prompt = &prompts()[0];
    let (text, safe) = (&prompt.text, prompt.q8_0.safe.to_string());
    let args = ["run", "-p", text, "--raw", "--temp", "0", "-n", &safe, "--json"];
    let output = command(&args, None);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("demo model")).count(), 1, "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tokens"], serde_json::json!(prompt.q8_0.safe()));
}

#[test]
fn a_model_of_the_environment_comes_first() {
    let output = command(&["run", "-p", "Hi"], Some("/nowhere/model.gguf"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("/nowhere/model.gguf") && !stderr.contains("demo"), "{stderr}");
}
