//! The demo model is part of the program and computes what `models/selftest.json` expects of it.

use crate::common::expected::FLOAT32_LIMIT;
use engine::{
    Engine, EngineOptions, Gguf, demo,
    kv::KvType,
    ngram::{NgramTable, Storage},
    selftest::{Answer, Prompt, Stored},
    text::{EncodeOptions, Tokenizer, VocabSource},
};
use std::{
    ops::ControlFlow,
    process::{Command, Output},
};

/// Largest allowed logit difference where keys and values are rounded to f16 or to q8_0.
const ROUNDED_LIMIT: f32 = 0.02;

fn prompts() -> Vec<Prompt> {
    Stored::open().unwrap().prompts
}

fn load(cache: KvType) -> Engine {
    let options = EngineOptions { cache_k: cache, cache_v: cache, ..EngineOptions::default() };
    Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap()
}

/// The first `safe` tokens of `answer` must follow `ids`, and logits within `limit`.
fn check_answer(engine: &mut Engine, name: &str, ids: &[u32], answer: &Answer, limit: f32) {
    let mut sequence = engine.new_sequence().unwrap();
    engine.prefill(&mut sequence, ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let logits = engine.logits(&sequence).unwrap();
    for (id, logit) in &answer.top5_last {
        let found = logits[*id as usize];
        assert!((found - logit).abs() <= limit, "{name}: logit of {id} is {found}, not {logit}");
    }
    let mut tokens = Vec::new();
    while tokens.len() < answer.safe {
        let token = engine.argmax(&sequence).unwrap();
        tokens.push(token);
        engine.decode(&mut sequence, token).unwrap();
    }
    assert_eq!(tokens, answer.greedy[..answer.safe], "{name}");
}

fn check(cache: KvType, limit: f32) {
    let mut engine = load(cache);
    for Prompt { name, ids, answer, .. } in prompts() {
        check_answer(&mut engine, &format!("{cache:?}, {name}"), &ids, &answer, limit);
    }
}

#[test]
fn selftest_prompts_are_answered_as_the_reference_does() {
    check(KvType::F32, FLOAT32_LIMIT as f32);
    check(KvType::F16, ROUNDED_LIMIT);
    check(KvType::Q8_0, ROUNDED_LIMIT);
}

fn check_needle(depth: usize) {
    let mut engine = load(KvType::F16);
    let needles = Stored::open().unwrap().needles;
    let needle = needles.iter().find(|n| n.n_tokens.next_power_of_two() == depth).unwrap();
    let ids = needle.ids(engine.tokenizer()).unwrap();
    let answer = &needle.known.as_ref().unwrap().answer;
    assert!(engine.tokenizer().decode(&answer.greedy, false).contains(&needle.answer));
    check_answer(&mut engine, &format!("needle at {depth}"), &ids, answer, ROUNDED_LIMIT);
}

#[test]
fn a_fact_in_8192_tokens_is_found() {
    check_needle(8192);
}

#[test]
#[ignore = "minutes on software Vulkan: cargo test --test all 32768 -- --ignored"]
fn a_fact_in_32768_tokens_is_found() {
    check_needle(32_768);
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
    let (text, safe) = (&prompt.text, prompt.answer.safe.to_string());
    let args = ["run", "-p", text, "--raw", "--temp", "0", "-n", &safe, "--json"];
    let output = command(&args, None);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("demo model")).count(), 1, "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tokens"], serde_json::json!(prompt.answer.greedy[..prompt.answer.safe]));
}

#[test]
fn a_model_of_the_environment_comes_first() {
    let output = command(&["run", "-p", "Hi"], Some("/nowhere/model.gguf"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("/nowhere/model.gguf") && !stderr.contains("demo"), "{stderr}");
}
