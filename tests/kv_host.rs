//! The cache in host memory: the same logits, bit by bit, wherever its segments lie.

mod common;

use common::{
    devices::{poisoned, small_bindings_and_grids, webgpu_defaults},
    expected::{Expected, fixtures},
};
use engine::{
    Engine, EngineOptions,
    gpu::{DeviceOptions, MemoryReport},
    kv::{
        FEW, KvHost, KvStats,
        KvType::{F16, Q4_0, Q8_0},
    },
    model::config::{LayerKind, ModelConfig},
};
use std::ops::ControlFlow;

const MODELS: [&str; 3] = ["tiny-qwen4exp", "tiny-qwen35moe", "tiny-llama"];

fn open(model: &str, options: EngineOptions) -> Engine {
    let path = fixtures().join(format!("models/{model}.gguf"));
    Engine::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Staging so small that the history is many pieces.
fn options(device: DeviceOptions, kv_host: KvHost, chunk: u32) -> EngineOptions {
    EngineOptions { device, kv_host, chunk, kv_staging: 0, ..EngineOptions::default() }
}

/// The longest prompt of a fixture, twice.
fn prompt(model: &str) -> Vec<u32> {
    let expected = Expected::load(model);
    expected.prompts.into_iter().max_by_key(|p| p.ids.len()).unwrap().ids.repeat(2)
}

/// Rows of layers that a prompt of `n` tokens streams, if no page is left out: chunks of more than
/// a few tokens all before them, but the last layer only where its output is read.
fn streamed(config: &ModelConfig, n: usize, chunk: u32) -> u64 {
    let attends = |kind: &&LayerKind| **kind != LayerKind::Recurrent;
    let rows = |start: usize| {
        let of = n.min(start + chunk as usize) - start;
        let read = usize::from(start + of < n);
        let layers = config.layers.iter().rev().skip(read).filter(attends).count();
        if of > FEW as usize { start * layers } else { 0 }
    };
    (0..n).step_by(chunk as usize).map(rows).sum::<usize>() as u64
}

/// Logits after a prompt and after each of some decoded tokens; the memory and the traffic then.
fn answer(engine: &mut Engine, ids: &[u32]) -> (Vec<Vec<f32>>, MemoryReport, KvStats) {
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut logits = vec![engine.logits(&seq).unwrap()];
    for _ in 0..4 {
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        logits.push(engine.logits(&seq).unwrap());
    }
    (logits, engine.memory(), engine.kv_stats().unwrap())
}

#[test]
fn host_device_and_mixed_placement_give_equal_bits() {
    for model in MODELS {
        let prompt = prompt(model);
        // Small bindings cut the context into many segments.
        let (one, many) = (poisoned, small_bindings_and_grids);
        for (device, chunk, types) in [
            (one(), 64, [F16, F16]),
            (many(), 127, [F16, F16]),
            (many(), 3, [F16, F16]),
            (one(), 512, [F16, F16]),
            (many(), 90, [Q8_0, Q4_0]),
        ] {
            // It has heads of 16 values, which blocks are too large for.
            if model == "tiny-llama" && types[0] == Q8_0 {
                continue;
            }
            let options = |device, wish, chunk| EngineOptions {
                cache_k: types[0],
                cache_v: types[1],
                ..options(device, wish, chunk)
            };
            // Steps of few tokens are many.
            let ids = &prompt[..if chunk > FEW { prompt.len() } else { 300 }];
            let open = |wish| open(model, options(device.clone(), wish, chunk));
            let mut off = open(KvHost::Off);
            let loaded = off.memory().device.total;
            let chunk = off.chunk();
            let (want, all, idle) = answer(&mut off, ids);
            assert_eq!(all.host.total, 0);
            assert_eq!((idle.host_resident, idle.bytes_written_host), (0, 0));
            assert_eq!((idle.prefill.bytes_streamed, idle.prefill.ratio), (0, None));
            let (on, memory, stats) = answer(&mut open(KvHost::On), ids);
            assert_eq!((memory.device.kv, memory.device.index_raw), (0, 0));
            assert_eq!(
                (memory.host.kv, memory.host.index_raw),
                (all.device.kv, all.device.index_raw)
            );
            assert_eq!(memory.device.index_pooled, all.device.index_pooled);
            assert!(on == want, "{model}, chunks of {chunk}: the host");
            // Every row once a chunk, unless no query reads any of its page.
            let row = stats.row_bytes / u64::from(stats.layers);
            let most = streamed(off.config(), ids.len(), chunk) * row;
            let moved = stats.prefill.bytes_streamed;
            let sparse = model == "tiny-qwen4exp";
            assert!(moved == most || (sparse && moved < most), "{moved} of {most}: {stats:?}");
            assert_eq!(stats.prefill.bytes_naive, idle.prefill.bytes_naive);
            assert_eq!(stats.host_resident, memory.host.kv + memory.host.index_raw);
            let tokens = u64::from(stats.ctx_tokens);
            assert!(stats.bytes_written_host >= tokens * stats.row_bytes);
            // Room for half of it on the device.
            let mut half = options(device.clone(), KvHost::Auto, chunk);
            half.memory.device = Some(loaded + all.device.kv / 2);
            let (mixed, memory, _) = answer(&mut self::open(model, half), ids);
            // One layer's one segment cannot be split.
            let split = memory.device.kv > 0 && memory.host.kv > 0;
            let one = device.restrict.max_binding.is_none() || types[0] == Q8_0;
            assert!(split || (model == "tiny-qwen4exp" && one), "{memory:?}");
            assert!(mixed == want, "{model}, chunks of {chunk}: mixed");
        }
    }
}

#[test]
fn larger_staging_moves_the_same_bytes() {
    for model in MODELS {
        let ids = prompt(model);
        let [tiny, least, large] = [0, 4 << 20, 64 << 20].map(|kv_staging| {
            let options = EngineOptions { kv_staging, ..options(poisoned(), KvHost::On, 100) };
            answer(&mut open(model, options), &ids)
        });
        assert!(tiny.2.prefill.segments > least.2.prefill.segments);
        for other in [&least, &large] {
            assert_eq!(tiny.2.prefill.bytes_streamed, other.2.prefill.bytes_streamed);
            for (a, b) in tiny.0.iter().flatten().zip(other.0.iter().flatten()) {
                assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{model}: {a} and {b}");
            }
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
    short.memory.device = Some(loaded + used.kv);
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
