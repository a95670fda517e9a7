//! The same logits however a prompt is cut, at every length; sequences side by side; restored
//! state.

mod common;

use common::{
    devices::{load, poisoned, webgpu_defaults},
    expected::{Expected, FLOAT32_LIMIT, fixtures},
    forward64::Model,
};
use engine::{Engine, EngineOptions, kv::KvType, sequence::Sequence};
use std::ops::ControlFlow;

const CHUNKS: [u32; 6] = [1, 3, 64, 65, 127, 512];
const MODELS: [&str; 4] = ["tiny-qwen35moe", "tiny-qwen35", "tiny-llama", "tiny-qwen4exp"];

/// Every buffer starts as NaN; one of the models does without optional features.
fn open(model: &str, chunk: u32) -> Engine {
    let path = fixtures().join(format!("models/{model}.gguf"));
    let device = if model == "tiny-qwen35" { webgpu_defaults() } else { poisoned() };
    load(&path, device, KvType::F32, chunk)
}

fn prefill(engine: &mut Engine, seq: &mut Sequence, ids: &[u32]) {
    engine.prefill(seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn assert_same(a: &[f32], b: &[f32], at: &str) {
    for (a, b) in a.iter().zip(b) {
        assert!(f64::from((a - b).abs()) <= FLOAT32_LIMIT, "{at}: {a} and {b}");
    }
}

/// 420 tokens.
fn long_prompt(model: &str) -> Vec<u32> {
    let expected = Expected::load(model);
    expected.prompts.into_iter().max_by_key(|p| p.ids.len()).unwrap().ids
}

#[test]
fn chunk_sizes_give_the_same_logits_at_every_position() {
    for model in MODELS {
        let ids = long_prompt(model);
        let every: Vec<usize> = (0..ids.len()).collect();
        let mut all: Vec<Vec<Vec<f32>>> = Vec::new();
        for chunk in CHUNKS {
            let mut engine = open(model, chunk);
            let mut seq = engine.new_sequence().unwrap();
            let mut rows = Vec::new();
            let mut sink = |_, logits| {
                rows.push(logits);
                Ok(())
            };
            engine.logits_of(&mut seq, &ids, chunk, &every, &mut sink).unwrap();
            all.push(rows);
        }
        for (chunk, rows) in CHUNKS.iter().zip(&all).skip(1) {
            for (position, (a, b)) in all[0].iter().zip(rows).enumerate() {
                assert_same(a, b, &format!("{model} chunk {chunk} position {position}"));
            }
        }
    }
}

/// For every length: one pass, all but the last token and a decode step, and token by token.
#[test]
fn every_length_from_1_to_130() {
    for model in MODELS {
        let ids = &long_prompt(model)[..130];
        let mut engine = open(model, 64);
        let mut stepwise = engine.new_sequence().unwrap();
        let (mut whole, mut split) =
            (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
        for n in 1..=ids.len() {
            let at = format!("{model} length {n}");
            engine.decode(&mut stepwise, ids[n - 1]).unwrap();
            let reference = engine.logits(&stepwise).unwrap();
            engine.clear(&mut whole);
            prefill(&mut engine, &mut whole, &ids[..n]);
            assert_same(&engine.logits(&whole).unwrap(), &reference, &at);
            if n > 1 {
                engine.clear(&mut split);
                prefill(&mut engine, &mut split, &ids[..n - 1]);
                engine.decode(&mut split, ids[n - 1]).unwrap();
                assert_same(&engine.logits(&split).unwrap(), &reference, &at);
            }
        }
    }
}

/// Positions past 4096, reached by a chunk and by decoding, against the f64 forward pass.
#[test]
fn generation_crosses_4096_positions() {
    let path = fixtures().join("models/tiny-qwen3moe.gguf");
    let ids: Vec<u32> = (0..4100).map(|i| i * 37 % 600).collect();
    let model = Model::open(&path);
    let mut state = model.state();
    let steps: Vec<_> = ids.iter().map(|id| model.step(&mut state, *id).logits).collect();
    let options = EngineOptions {
        context: Some(4100),
        cache_k: KvType::F32,
        cache_v: KvType::F32,
        ..EngineOptions::default()
    };
    let mut engine = Engine::load(&path, &options, &mut |_, _| ()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    prefill(&mut engine, &mut seq, &ids[..4094]);
    let before = engine.checkpoint(&seq).unwrap();
    for position in 4094..4100 {
        engine.decode(&mut seq, ids[position]).unwrap();
        let expected: Vec<f32> = steps[position].iter().map(|l| *l as f32).collect();
        assert_same(&engine.logits(&seq).unwrap(), &expected, &format!("position {position}"));
    }
    engine.restore(&mut seq, &before).unwrap();
    prefill(&mut engine, &mut seq, &ids[4094..]);
    let expected: Vec<f32> = steps[4099].iter().map(|l| *l as f32).collect();
    assert_same(&engine.logits(&seq).unwrap(), &expected, "by a chunk");
}

#[test]
fn a_restored_state_continues_identically() {
    for model in MODELS {
        let ids = long_prompt(model);
        let mut engine = open(model, 32);
        let mut seq = engine.new_sequence().unwrap();
        prefill(&mut engine, &mut seq, &ids[..100]);
        let checkpoint = engine.checkpoint(&seq).unwrap();
        prefill(&mut engine, &mut seq, &ids[100..140]);
        let first = engine.logits(&seq).unwrap();
        engine.restore(&mut seq, &checkpoint).unwrap();
        assert_eq!(seq.tokens(), &ids[..100]);
        // Another continuation in between must leave no trace.
        prefill(&mut engine, &mut seq, &ids[300..350]);
        engine.restore(&mut seq, &checkpoint).unwrap();
        prefill(&mut engine, &mut seq, &ids[100..140]);
        assert_eq!(engine.logits(&seq).unwrap(), first, "{model}");
    }
}

#[test]
fn sequences_side_by_side_do_not_touch_each_other() {
    for model in MODELS {
        let ids = long_prompt(model);
        let mut engine = open(model, 48);
        let mut alone = Vec::new();
        for start in [0, 150] {
            let mut seq = engine.new_sequence().unwrap();
            prefill(&mut engine, &mut seq, &ids[start..start + 60]);
            for id in &ids[start + 60..start + 70] {
                engine.decode(&mut seq, *id).unwrap();
            }
            alone.push(engine.logits(&seq).unwrap());
        }
        let mut pair = [engine.new_sequence().unwrap(), engine.new_sequence().unwrap()];
        for (seq, start) in pair.iter_mut().zip([0, 150]) {
            prefill(&mut engine, seq, &ids[start..start + 60]);
        }
        for i in 60..70 {
            for (seq, start) in pair.iter_mut().zip([0, 150]) {
                engine.decode(seq, ids[start + i]).unwrap();
            }
        }
        for (seq, alone) in pair.iter().zip(&alone) {
            assert_eq!(&engine.logits(seq).unwrap(), alone, "{model}");
        }
    }
}

#[test]
fn a_cleared_sequence_is_as_good_as_new() {
    for model in MODELS {
        let ids = long_prompt(model);
        let mut engine = open(model, 64);
        let mut seq = engine.new_sequence().unwrap();
        prefill(&mut engine, &mut seq, &ids[..90]);
        let fresh = engine.logits(&seq).unwrap();
        // A longer run, broken off in mid-prefill.
        engine.clear(&mut seq);
        let mut chunks = 0;
        let mut stop = |_| {
            chunks += 1;
            if chunks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        engine.prefill(&mut seq, &ids, &mut stop).unwrap();
        assert_eq!(seq.tokens().len(), 128);
        engine.clear(&mut seq);
        prefill(&mut engine, &mut seq, &ids[..90]);
        assert_eq!(engine.logits(&seq).unwrap(), fresh, "{model}");
    }
}

/// Of a chunk whose logits nobody wants, the last layer only keeps its keys and values.
#[test]
fn the_last_layer_attends_for_the_last_chunk_only() {
    let model = "tiny-llama";
    let ids = &long_prompt(model)[..130];
    let layers = u64::from(open(model, 64).config().n_layer);
    let queries = |chunk| {
        let mut engine = open(model, chunk);
        let mut seq = engine.new_sequence().unwrap();
        prefill(&mut engine, &mut seq, ids);
        engine.attention_reads().full_queries
    };
    assert_eq!(queries(130), 130 * layers);
    assert_eq!(queries(64), 130 * (layers - 1) + 2);
    assert_eq!(queries(1), 130 * (layers - 1) + 1);
}
