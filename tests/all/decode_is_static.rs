//! Decoding creates nothing: invariant of the design, counted.

use crate::common::{devices::load, expected::fixtures};
use engine::{
    Engine, EngineOptions, engine::Wanted, gpu::DeviceOptions, kv::KvType, sequence::Sequence,
};
use std::ops::ControlFlow;

#[test]
fn after_the_first_decode_step_nothing_is_created() {
    for model in ["tiny-qwen35moe", "tiny-qwen35", "tiny-qwen3moe", "tiny-llama", "tiny-qwen4exp"] {
        let path = fixtures().join(format!("models/{model}.gguf"));
        let mut engine = load(&path, DeviceOptions::default(), KvType::F16, 64);
        let mut seq = engine.new_sequence().unwrap();
        engine.prefill(&mut seq, &[1, 2, 3], &mut |_| ControlFlow::Continue(())).unwrap();
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        let before = engine.counters();
        for _ in 0..40 {
            let token = engine.argmax(&seq).unwrap();
            engine.decode(&mut seq, token).unwrap();
            engine.logits(&seq).unwrap();
        }
        assert_eq!(engine.counters(), before, "{model}");
        println!("{model}: {:?} dispatches a token", seq.dispatches_per_token());
    }
}

/// The first prompt waits for no kernel, whatever its length.
#[test]
fn kernels_of_prompts_are_compiled_ahead() {
    for model in ["tiny-qwen35moe", "tiny-llama", "tiny-qwen4exp"] {
        let path = fixtures().join(format!("models/{model}.gguf"));
        let mut engine = load(&path, DeviceOptions::default(), KvType::F16, 100);
        engine.compile_prefill().unwrap();
        let before = (engine.counters().pipelines, engine.paths());
        let mut seq = engine.new_sequence().unwrap();
        for n in [2, 3, 9, 17, 33, 40, 70, 100, 101, 130] {
            engine.clear(&mut seq);
            engine.prefill(&mut seq, &vec![1; n], &mut |_| ControlFlow::Continue(())).unwrap();
        }
        engine.prefill(&mut seq, &[1; 50], &mut |_| ControlFlow::Continue(())).unwrap();
        let mut late = engine.paths();
        late.retain(|path| !before.1.contains(path));
        assert_eq!(engine.counters().pipelines, before.0, "{model}: {late:?}");
    }
}

/// A step of those of `seqs` that `who` names.
fn step(engine: &mut Engine, seqs: &mut [Sequence], who: &[usize]) {
    let members = seqs.iter_mut().enumerate().filter(|(i, _)| who.contains(i));
    let mut batch: Vec<_> = members.map(|(_, seq)| (seq, 1)).collect();
    engine.decode_each(&mut batch).unwrap();
    let read: Vec<_> = who.iter().map(|i| (&seqs[*i], Wanted::Logits)).collect();
    engine.outcomes(&read).unwrap();
}

#[test]
fn nor_after_the_first_step_of_the_same_sequences() {
    for model in ["tiny-qwen35moe", "tiny-qwen4exp"] {
        let path = fixtures().join(format!("models/{model}.gguf"));
        let options = EngineOptions { sequences: 4, ..EngineOptions::default() };
        let mut engine = Engine::load(&path, &options, &mut |_, _| ()).unwrap();
        let mut seqs: Vec<_> = (0..5).map(|_| engine.new_sequence().unwrap()).collect();
        step(&mut engine, &mut seqs, &[0, 1, 3]);
        step(&mut engine, &mut seqs, &[1, 3]);
        let before = engine.counters();
        for _ in 0..10 {
            step(&mut engine, &mut seqs, &[0, 1, 3]);
            step(&mut engine, &mut seqs, &[1, 3]);
        }
        assert_eq!(engine.counters(), before, "{model}");

        // Recordings are bounded, and go with their sequences.
        let kept = |engine: &Engine| engine.memory().device.staging;
        let without = kept(&engine);
        let mut most = 0;
        for round in 0..3 {
            for pair in (0..5).flat_map(|i| (0..i).map(move |j| [j, i])) {
                step(&mut engine, &mut seqs, &pair);
            }
            match round {
                0 => most = kept(&engine),
                _ => assert_eq!(kept(&engine), most, "{model}, round {round}"),
            }
        }
        assert!(most > without, "{model}");
        seqs.truncate(1);
        assert!(kept(&engine) < without, "{model}");
    }
}
