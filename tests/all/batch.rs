//! Sequences that step together are as they are alone, to the bit.

use crate::common::{
    devices::{as_it_is, poisoned, small_bindings_and_grids, webgpu_defaults},
    expected::{Expected, fixtures},
};
use engine::{
    Engine, EngineOptions, Error,
    engine::{Outcome, Wanted},
    gpu::DeviceOptions,
    sequence::Sequence,
};
use std::ops::ControlFlow;

fn open(model: &str, device: DeviceOptions, sequences: u32) -> Engine {
    let path = fixtures().join(format!("models/{model}.gguf"));
    let options = EngineOptions { device, sequences, chunk: 64, ..EngineOptions::default() };
    Engine::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// A text of 420 tokens.
fn text(model: &str) -> Vec<u32> {
    let prompts = Expected::load(model).prompts.into_iter();
    prompts.max_by_key(|prompt| prompt.ids.len()).unwrap().ids
}

/// A sequence of the first `n` tokens of `ids`.
fn begin(engine: &mut Engine, ids: &[u32], n: usize) -> Sequence {
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &ids[..n], &mut |_| ControlFlow::Continue(())).unwrap();
    seq
}

/// Logits of every step and what is greedily chosen, `steps` times, after `n` tokens.
fn alone(engine: &mut Engine, ids: &[u32], n: usize, steps: usize) -> (Vec<Vec<f32>>, Vec<u32>) {
    let mut seq = begin(engine, ids, n);
    let mut next = || {
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        (engine.logits(&seq).unwrap(), token)
    };
    (0..steps).map(|_| next()).unzip()
}

/// Takes sequences of these lengths `steps` steps together and compares each with itself alone.
fn check(engine: &mut Engine, model: &str, lengths: &[usize], steps: usize) {
    let ids = text(model);
    // One joins after the first step, one leaves before the last.
    let takes = |i: usize, step: usize| match i {
        0 => step > 0,
        1 => step + 1 < steps,
        _ => true,
    };
    let own = |i| (0..steps).filter(|step| takes(i, *step)).count();
    let want: Vec<_> =
        lengths.iter().enumerate().map(|(i, n)| alone(engine, &ids, *n, own(i))).collect();
    let mut seqs: Vec<_> = lengths.iter().map(|n| begin(engine, &ids, *n)).collect();
    let mut taken = vec![0; seqs.len()];
    for step in 0..steps {
        let who: Vec<_> = (0..seqs.len()).filter(|i| takes(*i, step)).collect();
        let members = seqs.iter_mut().enumerate().filter(|(i, _)| who.contains(i));
        // In another order every time.
        let mut batch: Vec<_> = members.map(|(i, seq)| (seq, want[i].1[taken[i]])).collect();
        let turn = step % batch.len();
        batch.rotate_left(turn);
        engine.decode_each(&mut batch).unwrap();
        let read: Vec<_> = who.iter().map(|i| (&seqs[*i], Wanted::Logits)).collect();
        let outcomes = engine.outcomes(&read).unwrap();
        for (i, outcome) in who.into_iter().zip(outcomes) {
            let Outcome::Logits(logits) = outcome else { panic!("{outcome:?}") };
            let at = format!("{model}: sequence {i} of {lengths:?} after step {step}");
            assert!(logits == want[i].0[taken[i]], "{at}");
            taken[i] += 1;
        }
    }
    for (i, seq) in seqs.iter().enumerate() {
        assert_eq!(seq.tokens()[lengths[i]..], want[i].1, "{model}: sequence {i}");
    }
}

#[test]
fn two_three_and_eight_sequences_equal_each_alone() {
    let mut engine = open("tiny-llama", as_it_is(), 2);
    check(&mut engine, "tiny-llama", &[40, 7], 4);
    for model in ["tiny-qwen3moe", "tiny-qwen35"] {
        check(&mut open(model, poisoned(), 3), model, &[5, 130, 64], 4);
    }
    // Longer ones of the second are past what its sparse attention reads.
    for model in ["tiny-qwen35moe", "tiny-qwen4exp"] {
        let lengths = [9, 300, 1, 64, 31, 127, 200, 3];
        check(&mut open(model, poisoned(), 8), model, &lengths, 4);
    }
}

#[test]
fn on_poor_devices_too() {
    let mut engine = open("tiny-qwen35moe", webgpu_defaults(), 3);
    check(&mut engine, "tiny-qwen35moe", &[5, 64, 12], 3);
    let mut engine = open("tiny-qwen4exp", small_bindings_and_grids(), 3);
    check(&mut engine, "tiny-qwen4exp", &[5, 200, 64], 3);
}

#[test]
fn what_cannot_step_together_is_refused_and_changes_nothing() {
    let mut engine = open("tiny-llama", as_it_is(), 2);
    assert_eq!(engine.together(), 2);
    let mut seqs = [0; 3].map(|_| engine.new_sequence().unwrap());
    let mut batch: Vec<_> = seqs.iter_mut().map(|seq| (seq, 1)).collect();
    let error = engine.decode_each(&mut batch).unwrap_err();
    assert!(matches!(&error, Error::Context(text) if text.contains("3 sequences")), "{error}");
    batch.truncate(2);
    batch[1].1 = u32::MAX;
    let error = engine.decode_each(&mut batch).unwrap_err();
    assert!(error.to_string().contains("4294967295"), "{error}");
    engine.decode_each(&mut []).unwrap();
    assert!(seqs.iter().all(|seq| seq.tokens().is_empty() && !seq.is_broken()));
}
