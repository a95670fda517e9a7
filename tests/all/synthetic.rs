//! The synthetic models of the benches are models: they load, and their layers stay in range.

use std::{env, fs, ops::ControlFlow, process};

use crate::common::synthetic::{Geometry, Streams};
use crate::common::{
    devices::{as_it_is, int_dot, load},
    edited::Temporary,
    forward64::Model,
};
use engine::{Gguf, kv::KvType, plan::Weights, quant::BlockType};

pub(crate) const SMALL: Geometry = Geometry {
    weights: Weights::Type(BlockType::F32),
    layers: 4,
    vocab: 700,
    embd: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    n_rot: 32,
    key_heads: 2,
    value_heads: 4,
    state_size: 64,
    experts: 8,
    experts_used: 3,
    expert_ff: 256,
    streams: None,
};

#[test]
fn every_format_gives_logits_of_sane_size() {
    for &ty in BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu()) {
        let file = env::temp_dir().join(format!("synthetic-{}-{ty}.gguf", process::id()));
        Geometry { weights: Weights::Type(ty), ..SMALL }.write(&file).expect("can be written");
        let model = Model::open(&file);
        let mut state = model.state();
        let steps: Vec<_> = (0..5).map(|id| model.step(&mut state, id)).collect();
        fs::remove_file(&file).expect("can be removed");
        for step in steps {
            // The last norm has mean square 1, and so have the outputs of a matrix.
            let logits = &step.logits;
            let size = (logits.iter().map(|x| x * x).sum::<f64>() / logits.len() as f64).sqrt();
            assert!((0.7..1.4).contains(&size), "{ty}: logits of size {size}");
            let stream = step.layers.iter().map(|layer| layer.layer_out[0].abs());
            assert!(stream.fold(0.0, f64::max) < 100.0, "{ty}: the residual stream grows");
        }
    }
}

/// The streams of a small model.
fn streams() -> Streams {
    Streams {
        low_rank: 96,
        index_dim: 64,
        budget: 8,
        ngram_heads: 2,
        ngram_width: 32,
        ngram_rows: 50,
        ..Streams::default()
    }
}

/// Rows that a K-quant does not fit are among them.
#[test]
fn streams_are_a_model_too() {
    let streams = streams();
    for weights in [Weights::Type(BlockType::Q8_0), Weights::Type(BlockType::Q4K), Weights::Mix] {
        let file = Temporary::new();
        let geometry = Geometry { weights, streams: Some(streams), ..SMALL };
        geometry.write(file.path()).expect("can be written");
        let mut engine = load(file.path(), as_it_is(), KvType::F16, 16);
        let mut seq = engine.new_sequence().unwrap();
        let ids: Vec<u32> = (0..20).collect();
        engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
        let logits = engine.logits(&seq).unwrap();
        let squares: f32 = logits.iter().map(|x| x * x).sum();
        let size = (squares / logits.len() as f32).sqrt();
        // Half of the mean of four normed streams.
        assert!((0.1..1.0).contains(&size), "{weights:?}: logits of size {size}");
    }
}

/// Types change from layer to layer, and a model of them gives what its weights give in f64.
#[test]
fn a_mix_is_that_of_llama_cpp_and_runs() {
    let file = Temporary::new();
    let geometry = Geometry { weights: Weights::Mix, ..SMALL };
    geometry.write(file.path()).expect("can be written");
    let gguf = Gguf::open(file.path()).expect("can be opened");
    for (name, ty) in [
        ("output", BlockType::Q6K),
        ("token_embd", BlockType::Q4K),
        ("blk.1.attn_qkv", BlockType::Q4K),
        ("blk.2.attn_qkv", BlockType::Q6K),
        ("blk.2.attn_gate", BlockType::Q4K),
        ("blk.3.attn_v", BlockType::Q6K),
        ("blk.3.attn_k", BlockType::Q4K),
        ("blk.0.ffn_down_exps", BlockType::Q4K),
        ("blk.3.ffn_down_exps", BlockType::Q6K),
        ("blk.3.ffn_gate_inp", BlockType::F32),
    ] {
        let tensor = gguf.tensor(&format!("{name}.weight")).expect(name);
        assert_eq!(tensor.ty, ty, "{name}");
    }
    let model = Model::open(file.path());
    let mut state = model.state();
    let ids: Vec<u32> = (0..20).map(|i| i * 31 % 700).collect();
    let want = ids.iter().map(|id| model.step(&mut state, *id).logits).last().expect("20 steps");
    let mut engine = load(file.path(), as_it_is(), KvType::F32, 16);
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    for (got, want) in engine.logits(&seq).unwrap().iter().zip(&want) {
        assert!((f64::from(*got) - want).abs() < 5e-3, "{got} {want}");
    }
}

/// Every input of a product by whole numbers has been made one: in steps of few tokens they give
/// what floats give in a step of many.
#[test]
fn whole_numbers_say_what_floats_say() {
    let file = Temporary::new();
    let geometry =
        Geometry { weights: Weights::Type(BlockType::Q8_0), streams: Some(streams()), ..SMALL };
    geometry.write(file.path()).expect("can be written");
    let mut engine = load(file.path(), int_dot(), KvType::F32, 16);
    let ids: Vec<u32> = (0..9).collect();
    let [many, few] = [16, 1].map(|step| {
        let mut seq = engine.new_sequence().unwrap();
        for ids in ids.chunks(step) {
            engine.prefill(&mut seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
        }
        engine.logits(&seq).unwrap()
    });
    for (many, few) in many.iter().zip(&few) {
        assert!((many - few).abs() < 5e-3, "{many} {few}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    let file = env::temp_dir().join(format!("synthetic-{}-refused.gguf", process::id()));
    let written =
        Geometry { weights: Weights::Type(BlockType::Q4K), expert_ff: 48, ..SMALL }.write(&file);
    let message = written.expect_err("rows of 48 are no blocks of 32").to_string();
    assert!(message.contains("--expert-ff"), "{message}");
    assert!(!file.exists(), "nothing was written");
}

/// Heads of no power of two, one expert, rows of no whole 32, a layer past the last attention.
#[test]
fn odd_geometries_run() {
    let q4_k = Weights::Type(BlockType::Q4K);
    for geometry in [
        Geometry {
            weights: q4_k,
            embd: 96,
            heads: 6,
            kv_heads: 3,
            head_dim: 16,
            n_rot: 6,
            ..SMALL
        },
        Geometry { key_heads: 3, value_heads: 9, state_size: 16, ..SMALL },
        Geometry { experts: 1, experts_used: 1, expert_ff: 40, layers: 5, ..SMALL },
        Geometry { streams: Some(streams()), head_dim: 24, n_rot: 24, ..SMALL },
    ] {
        let file = Temporary::new();
        geometry.write(file.path()).expect("can be written");
        let mut engine = load(file.path(), as_it_is(), KvType::F16, 16);
        let mut seq = engine.new_sequence().unwrap();
        engine.decode(&mut seq, 1).unwrap();
        let logits = engine.logits(&seq).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()), "{geometry:?}");
    }
}

#[test]
fn sizes_of_no_model_are_named() {
    let q8_0 = Weights::Type(BlockType::Q8_0);
    for (geometry, flag) in [
        (Geometry { layers: 3, ..SMALL }, "--layers"),
        (Geometry { vocab: 639, ..SMALL }, "--vocab"),
        (Geometry { weights: q8_0, embd: 200, ..SMALL }, "--embd"),
        (Geometry { heads: 3, ..SMALL }, "--heads"),
        (Geometry { kv_heads: 0, ..SMALL }, "--kv-heads"),
        (Geometry { head_dim: 60, ..SMALL }, "--head-dim"),
        (Geometry { n_rot: 7, ..SMALL }, "--rot"),
        (Geometry { n_rot: 2, ..SMALL }, "--rot"),
        (Geometry { n_rot: 66, ..SMALL }, "--rot"),
        (Geometry { key_heads: 0, ..SMALL }, "--key-heads"),
        (Geometry { value_heads: 3, ..SMALL }, "--value-heads"),
        (Geometry { state_size: 48, ..SMALL }, "--state-size"),
        (Geometry { experts: 0, ..SMALL }, "--experts"),
        (Geometry { experts_used: 9, ..SMALL }, "--experts-used"),
        (Geometry { expert_ff: 0, ..SMALL }, "--expert-ff"),
    ] {
        let fault = geometry.check().expect_err(flag);
        assert!(fault.starts_with(&format!("{flag} ")), "{fault}");
    }
    SMALL.check().expect("a model");
}
