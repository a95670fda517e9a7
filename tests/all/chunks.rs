//! The same logits however a prompt is cut, at every length; sequences side by side; restored
//! state.

use crate::common::{
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

/// One engine a model: compiling its kernels takes longer than all that they do here.
#[test]
fn chunk_sizes_give_the_same_logits_at_every_position() {
    for model in MODELS {
        let ids = &long_prompt(model)[..140];
        let every: Vec<usize> = (0..ids.len()).collect();
        let mut engine = open(model, 512);
        let mut seq = engine.new_sequence().unwrap();
        let mut all: Vec<Vec<Vec<f32>>> = Vec::new();
        for chunk in CHUNKS {
            engine.clear(&mut seq);
            let mut rows = Vec::new();
            let mut sink = |_, logits| {
                rows.push(logits);
                Ok(())
            };
            engine.logits_of(&mut seq, ids, chunk, &every, &mut sink).unwrap();
            all.push(rows);
        }
        for (chunk, rows) in CHUNKS.iter().zip(&all).skip(1) {
            for (position, (a, b)) in all[0].iter().zip(rows).enumerate() {
                assert_same(a, b, &format!("{model} chunk {chunk} position {position}"));
            }
        }
    }
}

#[test]
fn sequences_are_whole_however_they_came_about() {
    for model in MODELS {
        let (ids, mut engine) = (long_prompt(model), open(model, 64));
        lengths_to_over_two_chunks(model, &mut engine, &ids[..130]);
        a_restored_state_continues_identically(model, &mut engine, &ids);
        sequences_side_by_side_do_not_touch_each_other(model, &mut engine, &ids);
        a_cleared_sequence_is_as_good_as_new(model, &mut engine, &ids);
    }
}

/// For every length to a bit over one chunk of kernels, and those about two: one pass, all but the last
/// token and a decode step, and token by token.
fn lengths_to_over_two_chunks(model: &str, engine: &mut Engine, ids: &[u32]) {
    let [mut stepwise, mut whole] = [(); 2].map(|()| engine.new_sequence().unwrap());
    let mut split = None::<Vec<f32>>;
    for n in 1..=ids.len() {
        let at = format!("{model} length {n}");
        engine.decode(&mut stepwise, ids[n - 1]).unwrap();
        let reference = engine.logits(&stepwise).unwrap();
        if let Some(split) = split.take() {
            assert_same(&split, &reference, &at);
        }
        if (67..127).contains(&n) {
            continue;
        }
        engine.clear(&mut whole);
        prefill(engine, &mut whole, &ids[..n]);
        assert_same(&engine.logits(&whole).unwrap(), &reference, &at);
        split = ids.get(n).map(|next| {
            engine.decode(&mut whole, *next).unwrap();
            engine.logits(&whole).unwrap()
        });
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

fn a_restored_state_continues_identically(model: &str, engine: &mut Engine, ids: &[u32]) {
    let mut seq = engine.new_sequence().unwrap();
    prefill(engine, &mut seq, &ids[..100]);
    let checkpoint = engine.checkpoint(&seq).unwrap();
    prefill(engine, &mut seq, &ids[100..140]);
    let first = engine.logits(&seq).unwrap();
    engine.restore(&mut seq, &checkpoint).unwrap();
    assert_eq!(seq.tokens(), &ids[..100]);
    // Another continuation in between must leave no trace.
    prefill(engine, &mut seq, &ids[300..350]);
    engine.restore(&mut seq, &checkpoint).unwrap();
    prefill(engine, &mut seq, &ids[100..140]);
    assert_eq!(engine.logits(&seq).unwrap(), first, "{model}");
    // Neither another sequence nor other tokens are what the checkpoint is of.
    let mut other = engine.new_sequence().unwrap();
    prefill(engine, &mut other, &ids[..140]);
    assert!(engine.restore(&mut other, &checkpoint).is_err(), "{model}");
    engine.clear(&mut seq);
    prefill(engine, &mut seq, &ids[1..141]);
    let error = engine.restore(&mut seq, &checkpoint).unwrap_err().to_string();
    assert!(error.contains("a checkpoint at 100 is not one of this sequence"), "{error}");
    assert_eq!(seq.tokens(), &ids[1..141]);
}

fn sequences_side_by_side_do_not_touch_each_other(model: &str, engine: &mut Engine, ids: &[u32]) {
    let mut alone = Vec::new();
    for start in [0, 150] {
        let mut seq = engine.new_sequence().unwrap();
        prefill(engine, &mut seq, &ids[start..start + 80]);
        for id in &ids[start + 80..start + 90] {
            engine.decode(&mut seq, *id).unwrap();
        }
        alone.push(engine.logits(&seq).unwrap());
    }
    let mut pair = [engine.new_sequence().unwrap(), engine.new_sequence().unwrap()];
    for (seq, start) in pair.iter_mut().zip([0, 150]) {
        prefill(engine, seq, &ids[start..start + 80]);
    }
    for i in 80..90 {
        for (seq, start) in pair.iter_mut().zip([0, 150]) {
            engine.decode(seq, ids[start + i]).unwrap();
        }
    }
    for (seq, alone) in pair.iter().zip(&alone) {
        assert_eq!(&engine.logits(seq).unwrap(), alone, "{model}");
    }
}

fn a_cleared_sequence_is_as_good_as_new(model: &str, engine: &mut Engine, ids: &[u32]) {
    let mut seq = engine.new_sequence().unwrap();
    prefill(engine, &mut seq, &ids[..90]);
    let fresh = engine.logits(&seq).unwrap();
    // A longer run, broken off in mid-prefill.
    engine.clear(&mut seq);
    let mut chunks = 0;
    let mut stop = |_| {
        chunks += 1;
        if chunks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    engine.prefill(&mut seq, ids, &mut stop).unwrap();
    assert_eq!(seq.tokens().len(), 128);
    engine.clear(&mut seq);
    prefill(engine, &mut seq, &ids[..90]);
    assert_eq!(engine.logits(&seq).unwrap(), fresh, "{model}");
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
