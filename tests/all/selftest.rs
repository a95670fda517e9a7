//! `engine selftest` as a user meets it: one line a check, a verdict, and a status that says so.

use crate::common::{edited::edited, expected::fixtures};
use std::process::{Command, Output};

fn selftest(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    let Output { status, stdout, stderr } = command.arg("selftest").args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (status.code(), stdout, stderr)
}

/// Kernels, demo model, a needle and a file, as JSON and as text.
#[test]
fn all_checks_pass_here() {
    let model = fixtures().join("models/tiny-qwen4exp.gguf");
    let args = ["-m", model.to_str().unwrap(), "--depth", "256", "--json", "-ctv", "f32"];
    let (status, stdout, stderr) = selftest(&args);
    assert_eq!(status, Some(0), "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["verdict"], "passed");
    assert_eq!(report["cache"], serde_json::json!(["f16", "f32"]));
    assert_eq!(report["engine"], env!("CARGO_PKG_VERSION"));
    for of in [&report["device"]["name"], &report["device"]["driver"], &report["reason"]] {
        let of = of.as_str().unwrap();
        assert!(!of.is_empty() && stderr.contains(of), "{of}: {stderr}");
    }
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let name = check["name"].as_str().unwrap();
        assert!(check["ok"] == true && check["ms"].is_u64(), "{check}");
        let line = stderr.lines().find(|line| line.starts_with(name)).unwrap();
        let detail = check["detail"].as_str().unwrap();
        assert!(line.contains(" ok ") && line.ends_with(&format!(" ms  {detail}")), "{line}");
    }
    for family in [
        "product Q4_K, one row",
        "product Q8_0, many rows",
        "experts Q4_K and Q6_K, many tokens",
        "routing",
        "norm of rows",
        "norm and rope",
        "attention decode, heads of 128",
        "attention prefill, heads of 256",
        "sparse attention decode",
        "indexer choice",
        "gated delta net, chunks",
        "dilated convolution",
        "hyper-connections mix",
        "n-gram gate",
        "embedding rows",
        "largest logit",
        "demo model: story start",
        "demo model: needle at 256",
        "model: token by token",
    ] {
        let there = checks.iter().any(|c| c["name"].as_str().unwrap().starts_with(family));
        assert!(there, "{family}");
    }
    let verdict = format!("verdict: all {} checks passed", checks.len());
    assert!(stderr.lines().last().unwrap().starts_with(&verdict), "{stderr}");
}

#[test]
fn a_failure_is_told_with_numbers_and_status_1() {
    // Whatever is asked of it, one logit is not a number.
    let model = edited(&fixtures().join("models/tiny-qwen3.gguf"), |name, values| {
        if name == "output.weight" || name == "token_embd.weight" {
            *values.last_mut().unwrap() = f32::NAN;
        }
    });
    let (status, stdout, stderr) =
        selftest(&["-m", model.path().to_str().unwrap(), "--depth", "0"]);
    assert_eq!(status, Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: device: 2 checks failed"), "{stderr}");
    let line = |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap();
    let logits = line("model: finite logits");
    assert!(logits.contains(" FAILED ") && logits.contains("logit[639] is NaN"), "{logits}");
    let steps = line("model: token by token");
    assert!(steps.contains("logit[639] is NaN") && steps.contains("limit 5e-2"), "{steps}");
    assert!(line("product F32, one row").contains(" ok "), "{stdout}");
    assert!(!stdout.contains("needle"), "{stdout}");
    let verdict = stdout.lines().last().unwrap();
    let named = " failed: model: finite logits, model: token by token (";
    assert!(verdict.starts_with("verdict: 2 of ") && verdict.contains(named), "{verdict}");
}

#[test]
fn wrong_flags_are_named_before_anything_runs() {
    for (args, status, word) in [
        (&["--depth", "255"][..], 2, "--depth 255"),
        (&["--depth", "1048576"], 2, "--depth 1048576"),
        (&["--depth", "deep"], 2, "--depth"),
        (&["-ctk", "q9"], 2, "--cache-type-k"),
        (&["--model"], 2, "--model"),
        (&["-m", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (&["--device", "no such"], 1, "no such"),
    ] {
        let (found, stdout, stderr) = selftest(args);
        assert_eq!((found, stdout.as_str()), (Some(status), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(word), "{args:?} does not name {word}: {stderr}");
    }
}
