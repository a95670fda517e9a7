//! Deep contexts: a synthetic history stands for a prefill, and what a decoded token reads does
//! not grow with it.

use crate::common::{
    devices::{load, poisoned},
    expected::fixtures,
};
use engine::{Engine, EngineOptions, Error, demo, kv::AttentionReads, kv::KvType};
use std::ops::ControlFlow;

/// Logits of a token after a synthetic history of `depth`, and what it read.
fn decode_at(engine: &mut Engine, depth: u32) -> (Vec<f32>, AttentionReads) {
    let mut seq = engine.new_sequence().unwrap();
    engine.synthetic_history(&mut seq, depth).unwrap();
    assert_eq!(seq.tokens().len(), depth as usize);
    let before = engine.attention_reads();
    engine.decode(&mut seq, 7).unwrap();
    let logits = engine.logits(&seq).unwrap();
    // Also says that they are finite.
    engine.argmax(&seq).unwrap();
    (logits, engine.attention_reads().since(&before))
}

#[test]
fn attention_reads_as_many_bytes_at_4k_as_at_256k() {
    let options = EngineOptions { device: poisoned(), ..EngineOptions::default() };
    let mut engine = Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap();
    let [near, far] = [4096, 262_144].map(|depth| decode_at(&mut engine, depth).1);
    let shape = engine.config().qwen4exp.as_ref().unwrap().indexer.shape();
    // The budget and a tail of one, two heads of 64 values of f16, keys and values.
    assert_eq!(far.kv_bytes, u64::from(shape.budget + 1) * 2 * 64 * 2 * 2);
    assert_eq!((near.kv_bytes, near.tokens), (far.kv_bytes, far.tokens));
    assert_eq!((near.sparse_queries, far.sparse_queries), (1, 1));
    assert_eq!(far.pooled_bytes, 64 * near.pooled_bytes);
}

/// Decoding over a border of 2^12, 2^15 and 2^16 positions gives what a chunk over it gives.
#[test]
fn positions_that_tables_might_end_at_are_crossed() {
    let options = EngineOptions { device: poisoned(), ..EngineOptions::default() };
    let mut engine = Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap();
    let ids: Vec<u32> = (1..=12).map(|i| i * 37 % 600).collect();
    for border in [4096, 32_768, 65_536] {
        let mut seq = engine.new_sequence().unwrap();
        engine.synthetic_history(&mut seq, border - 6).unwrap();
        let before = engine.checkpoint(&seq).unwrap();
        ids.iter().for_each(|id| engine.decode(&mut seq, *id).unwrap());
        let stepwise = engine.logits(&seq).unwrap();
        engine.restore(&mut seq, &before).unwrap();
        engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
        for (a, b) in engine.logits(&seq).unwrap().iter().zip(&stepwise) {
            assert!((a - b).abs() < 0.02, "{border}: {a} {b}");
        }
    }
}

#[test]
fn a_synthetic_history_is_whole_and_repeatable() {
    for model in ["tiny-llama", "tiny-qwen35moe", "tiny-qwen4exp"] {
        let path = fixtures().join(format!("models/{model}.gguf"));
        let mut engine = load(&path, poisoned(), KvType::F16, 48);
        // Not whole chunks, inside and past the first cache segment where the context allows.
        for depth in [0, 1, 50, 4100.min(engine.context() - 1)] {
            let (first, _) = decode_at(&mut engine, depth);
            let (second, _) = decode_at(&mut engine, depth);
            assert_eq!(first, second, "{model} at {depth}");
        }
        let mut seq = engine.new_sequence().unwrap();
        let deep = engine.context() + 1;
        let error = engine.synthetic_history(&mut seq, deep).unwrap_err();
        assert!(matches!(error, Error::Context(_)), "{error}");
        assert!(error.to_string().contains(&deep.to_string()), "{error}");
    }
}
