//! `engine inspect`, as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engine::Result;
use engine::gguf::write::Writer;
use engine::quant::BlockType;
use serde_json::Value;

fn inspect(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engine")).arg("inspect").args(args).output().unwrap()
}

/// The report as JSON; the command has to succeed.
fn json(file: &Path) -> Value {
    let output = inspect(&["--json".as_ref(), file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

/// Writes `model` with zeros as data.
fn written(test: &str, model: &Writer) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inspect-{test}.gguf"));
    model.write(&path, |tensor, sink| sink.write_all(&vec![0; tensor.size as usize]))?;
    Ok(path)
}

#[test]
fn a_model_that_runs() {
    let report = json(&fixture("mid-qwen35moe-Q4_K_M.gguf"));
    assert_eq!(report["metadata"]["general.architecture"], "qwen35moe");
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["length"], 640);
    assert_eq!(report["model"]["layers"], serde_json::json!(["recurrent", "attention"]));
    assert_eq!(report["types"][1]["type"], "Q4_K");
    assert_eq!(report["types"][1]["tensors"], 19);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 38);
    assert_eq!(report["tensors"][0]["shape"], serde_json::json!([256, 640]));
    for list in ["unsupported", "unused"] {
        assert_eq!(report[list], serde_json::json!([]), "{list}");
    }
}

#[test]
fn text_for_people() {
    let output = inspect(&[&fixture("tiny-qwen35moe-mtp.gguf")]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "96 tensors",
        "qwen35moe.attention.layer_norm_rms_epsilon: f32 = 1e-6",
        "qwen35moe: 4 layers of width 128, 1 with attention, 1 draft blocks",
        "3 of 8 experts of 32 and a shared one of 32",
        "token_embd.weight",
        "128 × 640",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    assert!(!text.contains("not supported"), "{text}");
}

#[test]
fn an_unsupported_architecture_is_shown_and_explained() -> Result<()> {
    let mut model = Writer::default();
    model.set("general.architecture", "qwen3next").set("general.name", "someone's");
    let report = json(&written("architecture", &model)?);
    assert_eq!(report["metadata"]["general.name"], "someone's");
    assert_eq!(report["model"], Value::Null);
    assert!(report["unsupported"][0].as_str().unwrap().contains("qwen3next"));
    Ok(())
}

#[test]
fn unsupported_types_and_unused_tensors_are_named() -> Result<()> {
    let gguf = engine::Gguf::open(fixture("tiny-llama.gguf"))?;
    let mut model = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        model.set(key, value.clone());
    }
    for tensor in gguf.tensors() {
        model.tensor(&tensor.name, tensor.ty, tensor.shape());
    }
    model.tensor("strange.weight", BlockType::Tq1_0, &[256]);
    let report = json(&written("types", &model)?);
    assert_eq!(report["unused"], serde_json::json!(["strange.weight"]));
    assert!(report["unsupported"][0].as_str().unwrap().contains("TQ1_0"));
    Ok(())
}

#[test]
fn missing_tensors_are_explained() -> Result<()> {
    let gguf = engine::Gguf::open(fixture("tiny-llama.gguf"))?;
    let mut model = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        model.set(key, value.clone());
    }
    let report = json(&written("no-tensors", &model)?);
    assert!(report["unsupported"][0].as_str().unwrap().contains("`output_norm.weight` is missing"));
    Ok(())
}

#[test]
fn what_is_no_model_is_one_sentence_and_status_1() {
    let source = Path::new(file!());
    let output = inspect(&[source]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no GGUF file") && error.lines().count() == 1, "{error}");
}
