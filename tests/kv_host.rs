//! The cache in host memory: the same logits, bit by bit, wherever its segments lie.

mod common;

use common::{
    devices::{poisoned, small_bindings_and_grids, webgpu_defaults},
    expected::{Expected, fixtures},
};
use engine::{
    Engine, EngineOptions,
    gpu::{DeviceOptions, MemoryReport},
    kv::KvHost,
};
use std::ops::ControlFlow;

const MODELS: [&str; 3] = ["tiny-qwen4exp", "tiny-qwen35moe", "tiny-llama"];

fn open(model: &str, options: EngineOptions) -> Engine {
    let path = fixtures().join(format!("models/{model}.gguf"));
    Engine::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

fn options(device: DeviceOptions, kv_host: KvHost, chunk: u32) -> EngineOptions {
    EngineOptions { device, kv_host, chunk, ..EngineOptions::default() }
}

/// Logits after a prompt of 420 tokens and after each of some decoded ones, and the memory then.
fn answer(engine: &mut Engine, ids: &[u32]) -> (Vec<Vec<f32>>, MemoryReport) {
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut logits = vec![engine.logits(&seq).unwrap()];
    for _ in 0..4 {
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        logits.push(engine.logits(&seq).unwrap());
    }
    (logits, engine.memory())
}

#[test]
fn host_device_and_mixed_placement_give_equal_bits() {
    for model in MODELS {
        let expected = Expected::load(model);
        let ids = expected.prompts.into_iter().max_by_key(|p| p.ids.len()).unwrap().ids;
        // Small bindings cut the context into many segments.
        for (device, chunk) in
            [(poisoned(), 64), (small_bindings_and_grids(), 127), (small_bindings_and_grids(), 3)]
        {
            let open = |wish| open(model, options(device.clone(), wish, chunk));
            let mut off = open(KvHost::Off);
            let loaded = off.memory().device.total;
            let (want, all) = answer(&mut off, &ids);
            assert_eq!(all.host.total, 0);
            let (on, memory) = answer(&mut open(KvHost::On), &ids);
            assert_eq!((memory.device.kv, memory.device.index_raw), (0, 0));
            assert_eq!(
                (memory.host.kv, memory.host.index_raw),
                (all.device.kv, all.device.index_raw)
            );
            assert_eq!(memory.device.index_pooled, all.device.index_pooled);
            assert!(on == want, "{model}, chunks of {chunk}: the host");
            // Room for half of it on the device.
            let mut half = options(device.clone(), KvHost::Auto, chunk);
            half.device_memory = Some(loaded + all.device.kv / 2);
            let (mixed, memory) = answer(&mut self::open(model, half), &ids);
            // One layer's one segment cannot be split.
            let split = memory.device.kv > 0 && memory.host.kv > 0;
            assert!(split || (model == "tiny-qwen4exp" && chunk == 64), "{memory:?}");
            assert!(mixed == want, "{model}, chunks of {chunk}: mixed");
        }
    }
}

#[test]
fn no_room_ends_in_a_sentence_and_the_conversation_is_kept() {
    let ids: Vec<u32> = (1..40).collect();
    let model = "tiny-qwen35moe";
    let mut engine = open(model, options(small_bindings_and_grids(), KvHost::Off, 64));
    let loaded = engine.memory().device.total;
    let used = answer(&mut engine, &ids).1.device;
    // Enough for the first segments only.
    let mut short = options(small_bindings_and_grids(), KvHost::Off, 64);
    short.device_memory = Some(loaded + used.kv);
    let mut engine = open(model, short);
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let before = engine.logits(&seq).unwrap();
    let many: Vec<u32> = (0..engine.context() - 64).map(|i| i % 90).collect();
    let error = engine.prefill(&mut seq, &many, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("are left on the device"), "{error}");
    let kept = seq.tokens().len();
    assert!(kept >= ids.len());
    if kept == ids.len() {
        assert_eq!(engine.logits(&seq).unwrap(), before);
    }
}

#[test]
fn a_device_that_reads_no_host_memory_says_so() {
    let mut engine = open("tiny-llama", options(webgpu_defaults(), KvHost::On, 64));
    let mut seq = engine.new_sequence().unwrap();
    let error = engine.decode(&mut seq, 1).unwrap_err().to_string();
    assert!(error.contains("keys cannot be in host memory"), "{error}");
    let mut engine = open("tiny-llama", options(webgpu_defaults(), KvHost::Auto, 64));
    let mut seq = engine.new_sequence().unwrap();
    engine.decode(&mut seq, 1).unwrap();
}
