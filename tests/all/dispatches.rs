//! The dispatches of a decode step of the two models that matter, layer for layer and narrow:
//! what a step costs of the host, and how often the device waits, follows from their number.

use crate::common::synthetic::{Geometry, Streams};
use crate::common::{
    devices::{int_dot, poisoned},
    edited::Temporary,
};
use engine::{
    Engine, EngineOptions,
    gpu::{DeviceOptions, Restrictions},
    plan::Weights,
    quant::BlockType,
};

/// Qwen3.5-35B-A3B.
const PLAIN: Geometry = Geometry {
    weights: Weights::Type(BlockType::Q8_0),
    layers: 40,
    vocab: 704,
    embd: 64,
    heads: 2,
    kv_heads: 1,
    head_dim: 16,
    n_rot: 8,
    key_heads: 1,
    value_heads: 1,
    state_size: 32,
    experts: 4,
    experts_used: 2,
    expert_ff: 32,
    streams: None,
};

/// Qwen3.8-Flash-Next: with its budget, so that there is a selection at depth.
fn streams() -> Geometry {
    let narrow = Streams {
        low_rank: 32,
        index_heads: 2,
        index_dim: 8,
        ngram_heads: 2,
        ngram_width: 32,
        ngram_rows: 50,
        ..Streams::default()
    };
    Geometry { layers: 48, streams: Some(narrow), ..PLAIN }
}

const CONTEXT: u32 = 262_144;

/// Dispatches of the first token's step and of that of the last of the context.
fn dispatches(model: &Temporary, device: DeviceOptions) -> [usize; 2] {
    let options =
        EngineOptions { device, context: Some(CONTEXT), chunk: 4096, ..EngineOptions::default() };
    let mut engine = Engine::load(model.path(), &options, &mut |_, _| ()).unwrap();
    [0, CONTEXT - 1].map(|depth| {
        let mut seq = engine.new_sequence().unwrap();
        engine.synthetic_history(&mut seq, depth).unwrap();
        engine.decode(&mut seq, 1).unwrap();
        engine.argmax(&seq).unwrap();
        report_encoding(&mut engine, seq.dispatches_per_token().unwrap());
        seq.dispatches_per_token().unwrap()
    })
}

/// Says how long the host takes to encode a step when nothing comes between; timing is no fault.
fn report_encoding(engine: &mut Engine, dispatches: usize) {
    let mut seq = engine.new_sequence().unwrap();
    let mut step = |engine: &mut Engine| {
        let before = engine.gpu().encoding();
        engine.decode(&mut seq, 1).and_then(|()| engine.argmax(&seq)).unwrap();
        engine.gpu().encoding() - before
    };
    // The first one records.
    step(engine);
    let least = (0..20).map(|_| step(engine)).min().unwrap();
    println!("{dispatches} dispatches are encoded in {least:?} at best");
}

fn no_int_dot() -> DeviceOptions {
    let restrict = Restrictions { int_dot: Some(false), ..int_dot().restrict };
    DeviceOptions { restrict, ..poisoned() }
}

fn check(geometry: &Geometry, budget: usize) {
    let model = Temporary::new();
    geometry.write(model.path()).unwrap();
    for (device, name) in [(int_dot(), "whole numbers"), (no_int_dot(), "floats")] {
        let found = dispatches(&model, device);
        println!("{} layers, {name}: {found:?} dispatches at 0 and {CONTEXT}", geometry.layers);
        assert!(found.iter().all(|n| *n <= budget), "{name}: {found:?}, not {budget}");
    }
}

#[test]
fn forty_layers_take_900_at_any_depth() {
    check(&PLAIN, 900);
}

#[test]
fn forty_eight_layers_with_streams_take_1300_at_any_depth() {
    check(&streams(), 1300);
}
