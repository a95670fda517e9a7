//! What goes wrong in one request stays there: unusable logits, a full context, prompts sent again.

use crate::common::{
    devices::load,
    edited::{Temporary, edited, scaled},
    expected::fixtures,
};
use engine::{
    Engine, EngineOptions, Error,
    gpu::DeviceOptions,
    kv::KvType,
    sample::{Sampler, SamplingParams},
    sequence::Sequence,
};
use std::{ops::ControlFlow, path::PathBuf, process::Command};

/// Its embedding is not a number in [`poisoned_model`].
const BAD: u32 = 300;
const GOOD: [u32; 5] = [72, 101, 108, 108, 111];

fn fixture(name: &str) -> PathBuf {
    fixtures().join(format!("models/{name}.gguf"))
}

fn poisoned_model() -> Temporary {
    edited(&fixture("tiny-qwen35moe"), |name, values| {
        if name == "token_embd.weight" {
            let width = values.len() / 640;
            values[BAD as usize * width..][..width].fill(f32::NAN);
        }
    })
}

fn prefill(engine: &mut Engine, seq: &mut Sequence, ids: &[u32]) {
    engine.prefill(seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn logits_after(engine: &mut Engine, seq: &mut Sequence, ids: &[u32]) -> Vec<f32> {
    engine.clear(seq);
    prefill(engine, seq, ids);
    engine.logits(seq).unwrap()
}

#[test]
fn a_request_of_nan_ends_alone() {
    let model = poisoned_model();
    let mut engine = load(model.path(), DeviceOptions::default(), KvType::F16, 64);
    let (mut one, mut other) = (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
    let clean = logits_after(&mut engine, &mut one, &GOOD);
    assert!(clean.iter().all(|l| l.is_finite()));

    // A step of its own, and in the middle of a longer one.
    for ids in [&[BAD][..], &[72, BAD, 108, 111], &[[7; 30], [BAD; 30]].concat()] {
        prefill(&mut engine, &mut other, &[1, 2, 3]);
        let bad = logits_after(&mut engine, &mut one, ids);
        assert!(bad.iter().all(|l| l.is_nan()), "NaN must not be lost on the way");
        assert!(matches!(engine.argmax(&one), Err(Error::Sampling(_))));
        for temperature in [0.0, 0.8] {
            let params = SamplingParams { temperature, ..Default::default() };
            let chosen = Sampler::new(params).unwrap().sample(&bad);
            assert!(matches!(chosen, Err(Error::Sampling(_))));
        }
        // The other sequence, which shares all scratch, goes on; this one starts anew.
        engine.decode(&mut other, 4).unwrap();
        let beside = engine.logits(&other).unwrap();
        assert!(beside == logits_after_steps(&mut engine, &[1, 2, 3], 4));
        assert!(logits_after(&mut engine, &mut one, &GOOD) == clean, "after {ids:?}");
        engine.clear(&mut other);
    }
}

fn logits_after_steps(engine: &mut Engine, prompt: &[u32], token: u32) -> Vec<f32> {
    let mut seq = engine.new_sequence().unwrap();
    prefill(engine, &mut seq, prompt);
    engine.decode(&mut seq, token).unwrap();
    engine.logits(&seq).unwrap()
}

/// On the command line, at temperature 0, where the device chooses, and above.
#[test]
fn unusable_logits_are_status_1_and_one_sentence() {
    let files = [f32::NAN, f32::INFINITY]
        .map(|factor| scaled(&fixture("tiny-llama"), |name| name == "output_norm.weight", factor));
    for (file, temperature) in files.iter().flat_map(|file| [(file, "0"), (file, "0.8")]) {
        let output = Command::new(env!("CARGO_BIN_EXE_engine"))
            .args(["run", "--tokens", "72,101", "--temp", temperature, "-m"])
            .arg(file.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("error: sampling: "), "{last}");
    }
}

/// The same prompt, shorter and shorter beginnings of it, and it again, on a used sequence.
#[test]
fn prompts_sent_again_give_the_same_bits() {
    let ids: Vec<u32> = (0..150).map(|i| i * 37 % 600).collect();
    for model in ["tiny-qwen35moe", "tiny-qwen3", "tiny-qwen4exp"] {
        let mut engine = load(&fixture(model), DeviceOptions::default(), KvType::F16, 64);
        let mut used = engine.new_sequence().unwrap();
        for n in [150, 150, 149, 65, 64, 2, 1, 1, 150] {
            let again = logits_after(&mut engine, &mut used, &ids[..n]);
            let mut fresh = engine.new_sequence().unwrap();
            let cold = logits_after(&mut engine, &mut fresh, &ids[..n]);
            assert!(again == cold, "{model}, {n} tokens");
        }
    }
}

#[test]
fn a_sequence_takes_its_memory_with_it() {
    for model in ["tiny-qwen35", "tiny-qwen4exp"] {
        let mut engine = load(&fixture(model), DeviceOptions::default(), KvType::F16, 64);
        let ids: Vec<u32> = (0..100).collect();
        let before = engine.memory();
        for _ in 0..3 {
            let mut seq = engine.new_sequence().unwrap();
            prefill(&mut engine, &mut seq, &ids);
            engine.decode(&mut seq, 1).unwrap();
            let held = engine.memory().device;
            assert!(held.state > before.device.state && held.kv > before.device.kv, "{model}");
            drop(seq);
            assert_eq!(engine.memory(), before, "{model}");
        }
    }
}

#[test]
fn a_full_context_refuses_and_keeps_what_is_there() {
    let context = Some(70);
    let options = EngineOptions { context, chunk: 32, ..EngineOptions::default() };
    let ids: Vec<u32> = (0..71).collect();
    let mut engine = Engine::load(&fixture("tiny-qwen35"), &options, &mut |_, _| ()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    let progress = &mut |_| -> ControlFlow<()> { panic!("nothing may be processed") };
    let refused = engine.prefill(&mut seq, &ids, progress).unwrap_err().to_string();
    assert!(refused.contains("71") && refused.contains("70"), "{refused}");
    prefill(&mut engine, &mut seq, &ids[..70]);
    let full = engine.logits(&seq).unwrap();
    assert!(matches!(engine.decode(&mut seq, 1), Err(Error::Context(_))));
    assert_eq!(seq.tokens().len(), 70);
    assert!(engine.logits(&seq).unwrap() == full, "nothing has moved");
    // The last place reached token by token, with the chunks' tolerance.
    let stepwise = {
        engine.clear(&mut seq);
        prefill(&mut engine, &mut seq, &ids[..60]);
        ids[60..70].iter().for_each(|id| engine.decode(&mut seq, *id).unwrap());
        engine.logits(&seq).unwrap()
    };
    for (a, b) in full.iter().zip(&stepwise) {
        assert!((a - b).abs() < 0.02, "{a} {b}");
    }
}
