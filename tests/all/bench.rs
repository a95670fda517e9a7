//! `engine bench`: rows that can be trusted, and what makes them invalid.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use crate::common::{
    edited::Temporary,
    expected::fixtures,
    synthetic::{Geometry, Streams},
};
use crate::synthetic::SMALL;
use engine::{
    Engine, EngineOptions, Gguf,
    gguf::TensorInfo,
    gpu::MemoryKind,
    kv::{KvHost, KvType},
    model::config::{Ffn, LayerKind},
    ngram::Storage,
    plan::{self, Weights},
    quant::BlockType,
};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama.gguf");

/// Exit status, stdout and stderr.
fn bench(args: &[&str]) -> (i32, String, String) {
    bench_of(MODEL, args)
}

fn bench_of(model: &str, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    let output = command.args(["bench", "-m", model]).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn rows(args: &[&str]) -> Vec<Value> {
    rows_of(MODEL, args)
}

#[track_caller]
fn rows_of(model: &str, args: &[&str]) -> Vec<Value> {
    let (status, stdout, stderr) = bench_of(model, &[args, &["-o", "json"]].concat());
    assert_eq!(status, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Known fault: figures hung on the order of the rows.
#[test]
fn rows_say_the_same_in_any_order() {
    let some = rows(&["-p", "9,5", "-n", "3", "-d", "0,7", "-r", "1"]);
    let other = rows(&["-p", "5,9", "-n", "3", "-d", "7,0", "-r", "2"]);
    assert_eq!((some.len(), other.len()), (6, 6));
    for row in &some {
        let twin = other.iter().find(|r| r["test"] == row["test"]).unwrap();
        for field in ["greedy", "read_bytes_per_token", "dispatches_per_token", "samples_tokens"] {
            let all = |v: &Value| match field {
                "samples_tokens" => v[0].clone(),
                _ => v.clone(),
            };
            assert_eq!(all(&row[field]), all(&twin[field]), "{} {field}", row["test"]);
        }
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["stddev_ts"], 0.0);
    }
    let tg: Vec<_> = some.iter().filter(|row| row["n_gen"] == 3).collect();
    let read = |row: &Value| row["read_bytes_per_token"].as_u64().unwrap();
    assert!(read(tg[1]) > read(tg[0]), "deeper tokens read more");
    assert!(tg[0]["share_of_copy"].as_f64().unwrap() > 0.0);
}

/// Known fault: speed was reported though the output was wrong.
#[test]
fn a_row_that_says_something_else_is_invalid_and_a_failure() {
    let args = ["-p", "0", "-n", "4", "-r", "1"];
    let mut stored = rows(&args);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-reference.json");
    let file = path.to_str().unwrap();
    fs::write(&path, serde_json::to_vec(&stored).unwrap()).unwrap();
    let with = [&args[..], &["--reference", file]].concat();
    assert_eq!(bench(&with).0, 0);
    stored[0]["greedy"][2] = (stored[0]["greedy"][2].as_u64().unwrap() ^ 1).into();
    fs::write(&path, serde_json::to_vec(&stored).unwrap()).unwrap();
    let (status, stdout, stderr) = bench(&with);
    assert_eq!(status, 1);
    assert!(stdout.contains("| invalid |") && stdout.contains("INVALID: token 2"), "{stdout}");
    assert!(stderr.contains("1 of 1 rows are invalid"), "{stderr}");
    fs::write(&path, "{}").unwrap();
    assert_eq!(bench(&with).0, 2);
}

/// Known fault: a reference that had none of the rows passed.
#[test]
fn a_reference_that_checks_nothing_is_a_failure() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-other-reference.json");
    let file = path.to_str().unwrap();
    fs::write(&path, serde_json::to_vec(&rows(&["-p", "0", "-n", "2", "-r", "1"])).unwrap())
        .unwrap();
    let with = |n| bench(&["-p", "0", "-n", n, "-r", "1", "--reference", file]);
    let (status, stdout, stderr) = with("2,3");
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("1 of 2 rows are not in"), "{stderr}");
    assert_eq!(stdout.matches("not in the reference, so not checked").count(), 1, "{stdout}");
    let (status, _, stderr) = with("3");
    assert_eq!(status, 1);
    assert!(stderr.contains("nothing was checked"), "{stderr}");
}

/// Known fault: a prompt had the dispatches of a token if the sequence had decoded before.
#[test]
fn prompts_have_no_dispatches_of_a_token() {
    let rows = rows(&["-p", "0", "-n", "2", "-pg", "5,0", "-r", "1"]);
    assert_eq!((&rows[0]["test"], &rows[1]["test"]), (&"tg2".into(), &"pp5".into()));
    assert!(rows[0]["dispatches_per_token"].as_u64().unwrap() > 0);
    assert!(rows[1]["dispatches_per_token"].is_null(), "{}", rows[1]);
}

/// Known fault: models followed one another, and nothing told them apart.
#[test]
fn models_are_compared_as_settings_are() {
    let other = fixtures().join("models/tiny-qwen35.gguf");
    let other = other.to_str().unwrap();
    let rows = rows(&["-m", other, "-p", "0", "-n", "2", "-r", "1"]);
    let files: Vec<_> = rows.iter().map(|row| row["model_filename"].as_str().unwrap()).collect();
    assert_eq!(files, [MODEL, other]);
    let runs = |row: &Value| row["samples_ns"].as_array().unwrap().len();
    assert_eq!((runs(&rows[0]), runs(&rows[1])), (2, 1));
    assert!(rows[0]["comparison"].is_null() && rows[1]["comparison"].is_object());
}

#[test]
fn settings_are_compared_and_drawn() {
    let args = ["-p", "4", "-n", "2", "-r", "1", "-d", "0,40", "--synthetic-history"];
    let compared = rows(&[&args[..], &["-ctk", "f16,f32"]].concat());
    let kinds: Vec<_> = compared.iter().map(|row| row["type_k"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["f16", "f32"].repeat(4));
    for row in &compared {
        assert_eq!(row["comparison"].is_object(), row["type_k"] == "f32");
        let visits = if row["type_k"] == "f16" { 2 } else { 1 };
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), visits);
    }
    let (status, svg, _) = bench(&[&args[..], &["-o", "svg"]].concat());
    assert_eq!(status, 0);
    assert_eq!(svg.matches("<circle").count(), 4);
}

#[test]
fn prompt_and_generation_together_in_every_form() {
    let args = ["-p", "0", "-n", "0", "-pg", "6,3", "-r", "1"];
    let row = &rows(&args)[0];
    assert_eq!(row["test"], "pp6+tg3");
    assert_eq!([&row["n_prompt"], &row["n_gen"], &row["samples_tokens"][0]], [6, 3, 9]);
    assert_eq!(row["greedy"].as_array().unwrap().len(), 4);
    let (status, lines, _) = bench(&[&args[..], &["-pg", "5,0", "-o", "jsonl"]].concat());
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((status, lines.len()), (0, 2));
    assert_eq!(lines[0]["greedy"], row["greedy"]);
    assert_eq!(lines[1]["test"], "pp5");
    let (status, sql, _) = bench(&[&args[..], &["-o", "sql"]].concat());
    assert_eq!((status, sql.matches("INSERT INTO").count()), (0, 1), "{sql}");
}

#[test]
fn a_dry_run_says_what_is_to_come_and_what_does_not_fit() {
    let args = ["-p", "16", "-n", "4", "-d", "0,64", "-r", "2", "-ctk", "f16,f32", "--dry-run"];
    let (status, text, stderr) = bench(&args);
    assert_eq!(status, 0, "{stderr}");
    // Three visits of 64 tokens of history and twice 20 tokens in three runs.
    let words = ["pp16, tg4, pp16 @ d64, tg4 @ d64", "3 visits of 2 settings: 552 tokens"];
    for word in [&words[..], &["f16/f16", "f32/f16", "a context of 80"]].concat() {
        assert!(text.contains(word), "{text}");
    }
    let (_, text, _) = bench(&["-p", "16", "-n", "0", "-r", "1", "--dry-run"]);
    assert!(text.contains("1 time timed, in 1 visit of 1 setting: 32 tokens"), "{text}");
    let (status, text, stderr) = bench(&[&args[..], &["--device-memory", "100K"]].concat());
    assert_eq!(status, 1);
    assert!(text.contains("which does not fit") && stderr.contains("does not fit"), "{stderr}");
}

#[test]
fn wrong_usage_is_named() {
    for (args, word) in [
        (&["-pg", "9"][..], "512,128"),
        (&["-p", "0", "-n", "0"], "nothing to measure"),
        (&["-p", "9-1"], "9-1"),
        (&["-r", "0"], "--repetitions"),
        (&["-ub", "0"], "--ubatch-size"),
        (&["-ctk", "q9"], "q9"),
    ] {
        let (status, stdout, stderr) = bench(args);
        assert_eq!((status, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.contains(word), "{stderr}");
    }
}

/// A seed user's llama-bench line, but for the sizes.
#[test]
fn llama_bench_lines_work() {
    let line = "-ngl 99 -fa 1 -b 8192 -p 0 -n 2 -d 16 -r 1";
    let (status, stdout, stderr) = bench(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.contains("| tg2 @ d16 |") && stdout.contains("n_batch"), "{stdout}");
    let line = "-ngl 0,99 -fa 0,1 -mmp 0 -nkvo 0 -t 4,8 -p 3 -p 5 -n 0 -r 1 --progress --delay 0 \
                -o jsonl -oe csv";
    let (status, stdout, stderr) = bench(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(status, 0, "{stderr}");
    let rows: Vec<Value> = stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!([&rows[0]["n_prompt"], &rows[1]["n_prompt"]], [3, 5]);
    assert_eq!(stderr.matches("\"pp5\"").count(), 1, "{stderr}");
    let (status, stdout, _) = bench(&["--list-devices"]);
    assert!(status == 0 && stdout.starts_with("0: "), "{stdout}");
}

/// Bytes read a token, as the bench reports them from the plan, beside what the recorded step
/// really binds.
#[test]
fn a_token_reads_what_its_step_binds() {
    for model in ["tiny-qwen35moe", "tiny-qwen35", "tiny-qwen4exp"] {
        let gguf = Gguf::open(fixtures().join(format!("models/{model}.gguf"))).unwrap();
        let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
        let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ()).unwrap();
        let mut seq = engine.new_sequence().unwrap();
        engine.decode(&mut seq, 1).unwrap();
        let used = match engine.config().ffn {
            Ffn::Moe { n_expert, n_used, .. } => f64::from(n_used) / f64::from(n_expert),
            _ => 1.0,
        };
        let read = |(op, kind, bytes): (&str, MemoryKind, u64)| match kind {
            MemoryKind::Weights if op.starts_with("expert_") => bytes as f64 * used,
            // One row of many.
            MemoryKind::Weights if op == "embed_rows" => 0.0,
            MemoryKind::Weights => bytes as f64,
            MemoryKind::State => 2.0 * bytes as f64,
            _ => 0.0,
        };
        let bound = seq.bound_per_token().unwrap();
        let counted: f64 = bound.iter().copied().map(read).sum();
        let planned = planned(&gguf, &engine) as f64;
        let ops: BTreeSet<_> = bound.iter().map(|(op, ..)| *op).collect();
        let off = (counted / planned - 1.0).abs();
        assert!(off < 0.05, "{model}: binds {counted}, reports {planned}; {ops:?}");
    }
}

/// Keys and values that decoding reads, as the bench reports them, beside what the recorded step
/// binds where segments are full, and beside the formula: every position of every attention layer.
#[test]
fn a_token_reads_the_keys_and_values_of_all_positions() {
    for model in ["tiny-llama", "tiny-qwen35moe"] {
        let gguf = Gguf::open(fixtures().join(format!("models/{model}.gguf"))).unwrap();
        let context = 2048;
        let options = EngineOptions { context: Some(context), ..EngineOptions::default() };
        let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ()).unwrap();
        let mut seq = engine.new_sequence().unwrap();
        engine.synthetic_history(&mut seq, context - 1).unwrap();
        let before = engine.attention_reads();
        engine.decode(&mut seq, 1).unwrap();
        let counted = engine.attention_reads().since(&before).kv_bytes as f64;
        let bound = seq.bound_per_token().unwrap();
        let kv = bound.iter().filter(|(op, kind, _)| *kind == MemoryKind::Kv && *op == "attention");
        let bound: u64 = kv.map(|(.., bytes)| bytes).sum();
        let config = engine.config();
        let attention = config.layers.iter().filter(|kind| **kind == LayerKind::Attention).count();
        // Of f16.
        let row = 2 * 2 * u64::from(config.n_kv) * u64::from(config.head_dim);
        let formula = (attention as u64 * row * u64::from(context)) as f64;
        for (what, bytes) in [("binds", bound as f64), ("reports", counted)] {
            let off = (bytes / formula - 1.0).abs();
            assert!(off < 0.05, "{model} {what} {bytes}, the formula says {formula}");
        }
    }
}

/// So narrow that state, keys and values, and pooled keys weigh something beside the weights.
const SPARSE: Geometry = Geometry {
    weights: Weights::Type(BlockType::Q8_0),
    embd: 128,
    expert_ff: 128,
    streams: Some(STREAMS),
    ..SMALL
};

const STREAMS: Streams = Streams {
    count: 4,
    low_rank: 64,
    index_heads: 2,
    index_dim: 128,
    budget: 2048,
    ratio: 4,
    ngram_heads: 2,
    ngram_width: 32,
    ngram_rows: 50,
};

/// Bytes of weights that a token needs, from the file alone.
fn active_weights(gguf: &Gguf) -> f64 {
    let active = |tensor: &TensorInfo| {
        let bytes = tensor.elements() as f64 / tensor.ty.block_elements() as f64
            * tensor.ty.block_bytes() as f64;
        match tensor.name.as_str() {
            // Some rows of many.
            "token_embd.weight" | "per_layer_token_embd.weight" => 0.0,
            name if name.contains("_exps") => {
                bytes * f64::from(SPARSE.experts_used) / f64::from(SPARSE.experts)
            }
            _ => bytes,
        }
    };
    gguf.tensors().iter().map(active).sum()
}

/// The whole figure of the bench where attention selects, beside the sum that the shapes give: of
/// four layers one is attention. No part is so small that the tolerance could hide it.
#[test]
fn a_token_of_a_sparse_model_reads_weights_state_selected_rows_and_pooled_keys() {
    const DEPTH: u32 = 8192;
    let Geometry { embd, kv_heads, head_dim, key_heads, value_heads, state_size, .. } = SPARSE;
    let file = Temporary::new();
    SPARSE.write(file.path()).unwrap();
    let weights = active_weights(&Gguf::open(file.path()).unwrap());
    // In f32, read and written: three past inputs of the convolution and a square a head; the
    // n-gram embedding's convolution looks back nine tokens, three times three.
    let conv = 3 * (2 * key_heads + value_heads) * state_size;
    let layer = conv + value_heads * state_size * state_size;
    let state = f64::from(2 * 4 * (3 * layer + 9 * STREAMS.count * embd));
    // f16 whatever the cache; every block before this token's.
    let pooled = f64::from(2 * STREAMS.index_dim * DEPTH / STREAMS.ratio);
    let depth = DEPTH.to_string();
    let args = ["-p", "0", "-n", "1", "-r", "1", "-d", &depth, "--synthetic-history"];
    let caches = ["-ctk", "f16,q8_0", "-ctv", "f16,q8_0"];
    let rows = rows_of(file.path().to_str().unwrap(), &[&args[..], &caches].concat());
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let bytes = |of: &str| match row[of].as_str().unwrap() {
            "f16" => 2.0,
            // A scale of two bytes for 32 values.
            "q8_0" => 34.0 / 32.0,
            other => panic!("{of} {other}"),
        };
        // Selected blocks, and the token itself.
        let attended = f64::from((STREAMS.budget + 1) * kv_heads * head_dim);
        let kv = attended * (bytes("type_k") + bytes("type_v"));
        let parts = [weights, state, kv, pooled];
        let sum: f64 = parts.iter().sum();
        let read = row["read_bytes_per_token"].as_f64().unwrap();
        println!("{} {}: {parts:?}, counted {}", row["type_k"], row["type_v"], read / sum);
        assert!(parts.iter().all(|part| *part > 0.08 * sum), "{parts:?}");
        assert!((read / sum - 1.0).abs() < 0.05, "counts {read}, not {sum}: {parts:?}");
    }
}

/// What the bench reports without keys and values.
fn planned(gguf: &Gguf, engine: &Engine) -> u64 {
    let model = plan::Model::of_file(gguf, "model").unwrap();
    let choices = plan::Choices {
        context: plan::Context::Trained,
        sequences: 1,
        cache_k: KvType::F16,
        cache_v: KvType::F16,
        kv_host: KvHost::Auto,
        kv_staging: 32 << 20,
        chunk: 64,
        experts_host: 0,
        ngram: Storage::Disk,
        checkpoints: plan::Checkpoints::default(),
        bandwidth: plan::Bandwidth::default(),
    };
    plan::fixed_reads(&model, &choices, engine.gpu().caps()).unwrap()
}
