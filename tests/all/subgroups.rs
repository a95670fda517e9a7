//! Results do not depend on how wide the device's subgroups are. Of the drivers here only llvmpipe
//! can be asked for other widths, before it starts: hence processes of their own.

use crate::common::{
    expected::{Expected, fixtures},
    skipped,
};
use serde_json::{Value, json};
use std::process::Command;

/// Subgroups of 8 and 16, where those of other tests are of 4 (`.cargo/config.toml`).
const VECTOR_BITS: [(&str, u64); 2] = [("256", 8), ("512", 16)];

/// What `engine` answers as JSON, with vectors of so many bits.
fn engine(vector_bits: &str, args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    let output = command.env("LP_NATIVE_VECTOR_WIDTH", vector_bits).args(args).arg("--json");
    let output = output.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether the device that is taken has subgroups of `size` with vectors of so many bits.
fn has_subgroups(vector_bits: &str, size: u64) -> bool {
    let devices = engine(vector_bits, &["devices"]);
    let chosen = devices["chosen"].as_u64().unwrap() as usize;
    let found = devices["adapters"][chosen]["subgroup_size"] == json!([size, size]);
    if !found {
        skipped(format_args!("no device with subgroups of {size}, as llvmpipe can have"));
    }
    found
}

/// Attention over everything and over selected blocks, delta net, experts and hyper-connections.
#[test]
fn tokens_are_those_of_the_reference() {
    let name = "tiny-qwen4exp";
    let expected = Expected::load(name);
    let prompt = expected.prompts.iter().max_by_key(|prompt| prompt.ids.len()).unwrap();
    let ids = prompt.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let model = fixtures().join(format!("models/{name}.gguf"));
    let model = model.to_str().unwrap();
    let n = prompt.greedy.len().to_string();
    let run = ["run", "-m", model, "--tokens", &ids, "-n", &n, "--temp", "0", "--ignore-eos"];
    for (bits, size) in VECTOR_BITS {
        if has_subgroups(bits, size) {
            let report = engine(bits, &run);
            assert_eq!(report["tokens"], json!(prompt.greedy), "subgroups of {size}");
        }
    }
}

/// Every kernel against double precision: minutes of compiling.
/// `cargo test --test all subgroups -- --ignored`
#[test]
#[ignore = "compiles every kernel twice more"]
fn every_kernel_passes_its_check() {
    for (bits, size) in VECTOR_BITS {
        if has_subgroups(bits, size) {
            let report = engine(bits, &["selftest", "--depth", "0"]);
            assert_eq!(report["verdict"], "passed", "subgroups of {size}");
        }
    }
}
