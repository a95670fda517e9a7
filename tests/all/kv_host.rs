//! The cache in host memory: the same logits, bit by bit, wherever its segments lie.

use crate::common::{
    devices::{poisoned, small_bindings_and_grids, webgpu_defaults},
    expected::{Expected, fixtures},
};
use engine::{
    Engine, EngineOptions, Error,
    gpu::{AdapterKind, DeviceOptions, MemoryReport},
    kv::{
        FEW, KvHost, KvStats,
        KvType::{F32, Q4_0, Q8_0},
        Placement,
    },
    model::config::{LayerKind, ModelConfig},
};
use std::{
    io::{self, Write},
    ops::ControlFlow,
    sync::{Arc, Mutex},
};
use tracing_subscriber::fmt::MakeWriter;

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

/// What came of a prompt: logits after it and after each of some decoded tokens, the memory then,
/// and the traffic with that of earlier ones.
struct Answer {
    logits: Vec<Vec<f32>>,
    memory: MemoryReport,
    stats: KvStats,
}

fn answer(engine: &mut Engine, ids: &[u32]) -> Answer {
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut logits = vec![engine.logits(&seq).unwrap()];
    for _ in 0..4 {
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        logits.push(engine.logits(&seq).unwrap());
    }
    Answer { logits, memory: engine.memory(), stats: engine.kv_stats().unwrap() }
}

/// One engine takes its caches to the device, to the host, and to both.
fn compare_placements(model: &str, options: EngineOptions) {
    let all = prompt(model);
    // Steps of few tokens are many.
    let ids = &all[..if options.chunk > FEW { all.len() } else { 150 }];
    let one_segment = options.device.restrict.max_binding.is_none() || options.cache_k == Q8_0;
    let mut engine = open(model, options);
    let chunk = engine.chunk();
    let place = |wish, device| Placement { wish, in_place: true, device, host: u64::MAX };
    engine.place(place(KvHost::Off, u64::MAX));
    let off = answer(&mut engine, ids);
    assert_eq!(off.memory.host.total, 0);
    let idle = &off.stats;
    assert_eq!((idle.host_resident, idle.bytes_written_host), (0, 0));
    assert_eq!((idle.prefill.bytes_streamed, idle.prefill.ratio), (0, None));
    assert_eq!((idle.decode.bytes_gathered_host, idle.prefill.bytes_naive_host), (0, 0));
    let kv = off.memory.device.kv;

    engine.place(place(KvHost::On, 0));
    let on = answer(&mut engine, ids);
    let Answer { memory, stats, .. } = &on;
    assert_eq!((memory.device.kv, memory.device.index_raw), (0, 0));
    assert_eq!((memory.host.kv, memory.host.index_raw), (kv, off.memory.device.index_raw));
    assert_eq!(memory.device.index_pooled, off.memory.device.index_pooled);
    assert!(on.logits == off.logits, "{model}, chunks of {chunk}: the host");
    // Every row once a chunk, unless no query reads any of its page.
    let row = stats.row_bytes / u64::from(stats.layers);
    let most = streamed(engine.config(), ids.len(), chunk) * row;
    let moved = stats.prefill.bytes_streamed;
    let sparse = model == "tiny-qwen4exp";
    assert!(moved == most || (sparse && moved < most), "{moved} of {most}: {stats:?}");
    // As much again as on the device, and all of it from the host.
    assert_eq!(stats.prefill.bytes_naive, 2 * idle.prefill.bytes_naive);
    assert_eq!(stats.prefill.bytes_naive_host, idle.prefill.bytes_naive);
    assert_eq!(stats.decode.bytes_gathered_host, idle.decode.bytes_gathered);
    assert_eq!(stats.host_resident, memory.host.kv + memory.host.index_raw);
    let tokens = u64::from(stats.ctx_tokens);
    assert!(stats.bytes_written_host >= tokens * stats.row_bytes);

    engine.place(place(KvHost::Auto, (kv + off.memory.device.index_raw) / 2));
    let mixed = answer(&mut engine, ids);
    let memory = &mixed.memory;
    // One layer's one segment cannot be split.
    let split = memory.device.kv > 0 && memory.host.kv > 0;
    assert!(split || (sparse && one_segment), "{memory:?}");
    assert!(mixed.logits == off.logits, "{model}, chunks of {chunk}: mixed");
    if split {
        // Of what is attended to a part crosses the bus.
        let decoded = mixed.stats.decode.bytes_gathered_host - stats.decode.bytes_gathered_host;
        assert!((1..idle.decode.bytes_gathered).contains(&decoded), "{decoded}");
        let naive = mixed.stats.prefill.bytes_naive_host - stats.prefill.bytes_naive_host;
        assert!((1..idle.prefill.bytes_naive).contains(&naive), "{naive}");
        assert_eq!((decoded % row, naive % row), (0, 0));
    }
}

#[test]
fn host_device_and_mixed_placement_give_equal_bits() {
    // Small bindings cut the context into many segments.
    let (one, many) = (poisoned, small_bindings_and_grids);
    for model in MODELS {
        for (device, chunk) in [(one(), 512), (many(), 127), (many(), 3)] {
            compare_placements(model, options(device, KvHost::Auto, chunk));
        }
    }
    // The llama has heads of 16 values, which blocks are too large for.
    for model in &MODELS[..2] {
        let of_type =
            EngineOptions { cache_k: Q8_0, cache_v: Q4_0, ..options(many(), KvHost::Auto, 90) };
        compare_placements(model, of_type);
    }
}

#[test]
fn larger_staging_moves_the_same_bytes() {
    for model in MODELS {
        let ids = prompt(model);
        let [tiny, least, large] = [0, 4 << 20, 64 << 20].map(|kv_staging| {
            let of_f32 = EngineOptions {
                cache_k: F32,
                cache_v: F32,
                ..options(poisoned(), KvHost::On, 100)
            };
            let options = EngineOptions { kv_staging, ..of_f32 };
            answer(&mut open(model, options), &ids)
        });
        assert!(tiny.stats.prefill.segments > least.stats.prefill.segments);
        for other in [&least, &large] {
            let streamed = |answer: &Answer| answer.stats.prefill.bytes_streamed;
            assert_eq!(streamed(&tiny), streamed(other));
            // Sums are cut otherwise: last bits differ.
            for (a, b) in tiny.logits.iter().flatten().zip(other.logits.iter().flatten()) {
                assert!((a - b).abs() <= 5e-5 * a.abs().max(1.0), "{model}: {a} and {b}");
            }
        }
    }
}

#[test]
fn no_room_ends_in_a_sentence_and_the_conversation_is_kept() {
    let ids: Vec<u32> = (1..40).collect();
    let model = "tiny-qwen35moe";
    let mut engine = open(model, options(small_bindings_and_grids(), KvHost::Off, 64));
    let kv = answer(&mut engine, &ids).memory.device.kv;
    // Enough for the first segments only.
    let device = kv;
    engine.place(Placement { wish: KvHost::Off, in_place: true, device, host: u64::MAX });
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    // Token by token until there is no more room.
    let error = loop {
        assert!(seq.tokens().len() < engine.context() as usize);
        let token = engine.argmax(&seq).unwrap();
        if let Err(error) = engine.decode(&mut seq, token) {
            break error;
        }
    };
    assert!(matches!(error, Error::Memory(_)), "{error}");
    assert!(error.to_string().contains("are left on the device"), "{error}");
    let (kept, before) = (seq.tokens().len(), engine.logits(&seq).unwrap());
    // Nothing has moved, and with more room it goes on.
    assert!(engine.decode(&mut seq, 1).is_err());
    assert_eq!((seq.tokens().len(), engine.logits(&seq).unwrap()), (kept, before));
    engine.place(Placement { wish: KvHost::Auto, in_place: true, device, host: u64::MAX });
    engine.decode(&mut seq, 1).unwrap();
    let after = engine.logits(&seq).unwrap();
    assert!(engine.memory().host.kv > 0);
    // As if there had been room all along.
    let tokens = seq.tokens().to_vec();
    engine.clear(&mut seq);
    engine.prefill(&mut seq, &tokens, &mut |_| ControlFlow::Continue(())).unwrap();
    for (a, b) in engine.logits(&seq).unwrap().iter().zip(&after) {
        assert!((a - b).abs() < 0.02, "{a} {b}");
    }
}

/// The driver has said there is more than there is.
#[test]
fn a_heap_that_is_smaller_than_it_was() {
    let ids: Vec<u32> = (1..40).collect();
    let model = "tiny-qwen35moe";
    let roomy = open(model, options(poisoned(), KvHost::Off, 64));
    let loaded = roomy.memory().device.total;
    drop(roomy);
    let with = |memory, wish| {
        let mut device = poisoned();
        device.restrict.memory = Some(memory);
        let options = options(device, wish, 64);
        let path = fixtures().join(format!("models/{model}.gguf"));
        Engine::load(&path, &options, &mut |_, _| ())
    };
    let error = with(loaded / 2, KvHost::Auto).err().expect("half a model is none");
    assert!(matches!(error, Error::Memory(_)) && error.exit_status() == 1, "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    // Room for state and logits, none for keys and values.
    let room = loaded + (1 << 20);
    for wish in [KvHost::Off, KvHost::Auto] {
        let mut engine = with(room, wish).unwrap();
        let mut seq = engine.new_sequence().unwrap();
        let more = &mut |_| ControlFlow::Continue(());
        match (wish, engine.prefill(&mut seq, &ids, more)) {
            (KvHost::Off, Err(error)) => {
                assert!(matches!(error, Error::Memory(_)), "{error}");
                assert!(error.to_string().contains("cannot have"), "{error}");
                assert!(seq.tokens().is_empty());
            }
            (_, done) => {
                done.unwrap();
                assert!(engine.memory().host.kv > 0, "{:?}", engine.memory());
            }
        }
    }
}

#[test]
fn what_the_bus_costs_is_told_when_the_model_is_loaded() {
    let said = |model: &str, wish| {
        let mut device = poisoned();
        device.restrict.kind = Some(AdapterKind::Discrete);
        let said = Said::default();
        let listener = tracing_subscriber::fmt().with_writer(said.clone()).finish();
        tracing::subscriber::with_default(listener, || {
            drop(open(model, options(device, wish, 64)));
        });
        String::from_utf8(said.0.lock().unwrap().clone()).unwrap()
    };
    let text = said("tiny-qwen35moe", KvHost::On);
    // Two layers, two heads of 64 values of two bytes, keys and values.
    assert!(text.contains("1024 bytes x 8192 tokens"), "{text}");
    assert!(text.contains("ms for every 1024 tokens of depth"), "{text}");
    assert!(!said("tiny-qwen35moe", KvHost::Off).contains("bus"));
    assert!(!said("tiny-qwen4exp", KvHost::On).contains("bus"), "it reads few tokens");
}

/// What is logged.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Said {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
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
