//! What only `qwen4exp` has, against the reference: which positions attention reads, every stream
//! after every layer, however a prompt is cut.

use crate::common::{
    devices::{as_it_is, load, poisoned},
    edited::described,
    expected::{Expected, FLOAT32_LIMIT, HIDDEN_LIMIT, Prompt},
};
use engine::{
    Engine, EngineOptions,
    gpu::{Buf, DeviceOptions, MemoryKind, Recorder, Restrictions},
    kv::{IndexShape, KvType},
    model::{Observer, Part, Workspace, config::LayerKind},
    ngram::Storage,
    ops::Tensor,
    sequence::Sequence,
};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    ops::ControlFlow,
    thread,
    time::Duration,
};

const CHUNKS: [u32; 5] = [1, 3, 64, 127, 512];

/// Streams after, and choices within, every layer of one step.
#[derive(Default)]
struct Taps {
    streams: Vec<Tensor>,
    chosen: Vec<(usize, Buf)>,
}

fn copy(rec: &mut Recorder, from: &Buf, bytes: u64) -> Buf {
    let to = rec.gpu().alloc("tap", bytes, MemoryKind::Scratch).unwrap();
    rec.copy(from, 0, &to, 0, bytes);
    to
}

impl Observer for Taps {
    fn after(&mut self, rec: &mut Recorder, il: usize, part: Part, ws: &Workspace, n: u32) {
        match part {
            Part::Mixer => {
                let selection = &ws.indexer.as_ref().unwrap().selection;
                let bytes = u64::from(n * selection.most) * 4;
                self.chosen.push((il, copy(rec, &selection.blocks, bytes)));
            }
            Part::Ngram => {}
            Part::Ffn => {
                let tap = Tensor::scratch(rec.gpu(), "tap", n, ws.x.width).unwrap();
                rec.copy(&ws.x.buf, 0, &tap.buf, 0, u64::from(n * ws.x.width) * 4);
                self.streams.push(tap);
            }
        }
    }
}

/// A sequence, and what its tokens did so far: `[layer][position]`.
struct Run {
    seq: Sequence,
    streams: Vec<Vec<Vec<f32>>>,
    chosen: Vec<Vec<Vec<u32>>>,
}

impl Run {
    fn start(engine: &Engine) -> Self {
        let n_layer = engine.config().layers.len();
        let seq = engine.new_sequence().unwrap();
        Self { seq, streams: vec![vec![]; n_layer], chosen: vec![vec![]; n_layer] }
    }

    fn new(engine: &mut Engine, ids: &[u32], chunk: u32) -> Self {
        let mut run = Self::start(engine);
        ids.chunks(chunk as usize).for_each(|part| run.step(engine, part));
        run
    }

    fn step(&mut self, engine: &mut Engine, part: &[u32]) {
        let shape = engine.config().qwen4exp.as_ref().unwrap().indexer.shape();
        let (first, n) = (self.seq.tokens().len() as u32, part.len() as u32);
        let mut taps = Taps::default();
        engine.observe(&mut self.seq, part, &mut taps).unwrap();
        for (rows, tensor) in self.streams.iter_mut().zip(&taps.streams) {
            let values = tensor.read(engine.gpu(), tensor.rows).unwrap();
            rows.extend(values.chunks(tensor.width as usize).map(<[f32]>::to_vec));
        }
        for (il, blocks) in &taps.chosen {
            if engine.config().layers[*il] != LayerKind::SparseAttention {
                continue;
            }
            // A chunk whose queries all see everything goes without a selection.
            if n > 1 && shape.sees_all(first, n) {
                self.chosen[*il].extend((first..first + n).map(|p| (0..=p).collect()));
                continue;
            }
            let bytes = u64::from(n * shape.most()) * 4;
            let blocks = engine.gpu().read(blocks, 0, bytes).unwrap();
            let blocks: Vec<u32> = bytemuck::pod_collect_to_vec(&blocks);
            let queries = (first..).zip(blocks.chunks(shape.most() as usize));
            self.chosen[*il].extend(queries.map(|(p, blocks)| read(shape, p, blocks)));
        }
    }
}

/// The positions that the query at `position` reads, of which `blocks` names the complete blocks.
fn read(shape: IndexShape, position: u32, blocks: &[u32]) -> Vec<u32> {
    let complete = shape.complete(position);
    let count = complete.min(shape.most()) as usize;
    let selected = blocks[..count].iter().flat_map(|b| b * shape.ratio..(b + 1) * shape.ratio);
    selected.chain(complete * shape.ratio..position + 1).collect()
}

fn compare_selected(run: &Run, prompt: &Prompt, at: &str) {
    for (il, queries) in &prompt.indexer_selected {
        for (position, want) in queries {
            assert_eq!(&run.chosen[*il][*position], want, "{at} layer {il} query {position}");
        }
    }
}

fn compare_streams(run: &Run, prompt: &Prompt, at: &str) {
    let layers = prompt.hidden_norm.iter().zip(&prompt.hidden_first16);
    for (il, (norms, first16)) in layers.enumerate() {
        let streams = norms.len() / prompt.positions.len();
        for (k, (norm, first16)) in norms.iter().zip(first16).enumerate() {
            let row = &run.streams[il][prompt.positions[k / streams]];
            let width = row.len() / streams;
            let stream = &row[k % streams * width..][..width];
            let length = stream.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let limit = HIDDEN_LIMIT * f64::from(*norm);
            assert!((length - f64::from(*norm)).abs() <= limit, "{at} layer {il} row {k}: norm");
            for (got, want) in stream.iter().zip(first16) {
                assert!(f64::from((got - want).abs()) <= limit, "{at} layer {il} row {k}: value");
            }
        }
    }
}

/// Compares all prompts in all chunk sizes; returns how many choices were compared.
fn compare(expected: &Expected) -> usize {
    let mut compared = 0;
    for chunk in CHUNKS {
        let mut engine = load(&expected.model, as_it_is(), KvType::F32, chunk);
        for prompt in &expected.prompts {
            let at = format!("{} in chunks of {chunk}", prompt.name);
            let run = Run::new(&mut engine, &prompt.ids, chunk);
            compare_selected(&run, prompt, &at);
            compare_streams(&run, prompt, &at);
            compared += prompt.indexer_selected.values().map(|q| q.len()).sum::<usize>();
        }
    }
    compared
}

#[test]
fn every_stream_and_choice_however_the_prompt_is_cut() {
    let compared = compare(&Expected::load("tiny-qwen4exp"));
    assert_eq!(compared, CHUNKS.len() * 2 * (1 + 7 + 8 + 6 + 6 + 8));
}

/// Of this one the reference has no choices.
#[test]
fn every_stream_of_a_quantised_model_however_the_prompt_is_cut() {
    if let Some(expected) = Expected::load_shared("mid-qwen4exp-Q8_0") {
        compare(&expected);
    }
}

#[test]
fn sequences_side_by_side_choose_what_they_choose_alone() {
    let expected = Expected::load("tiny-qwen4exp");
    let mut engine = load(&expected.model, poisoned(), KvType::F16, 48);
    let ids: Vec<u32> = (0..200).map(|i| i * i * 7 % 570).collect();
    let starts = [0, 90];
    // Both past the budget of 32 from the second step on.
    let parts = [20, 30, 1, 1, 40, 1, 1, 1];
    let alone = starts.map(|start| {
        let mut run = Run::start(&engine);
        let mut at = start;
        for n in parts {
            run.step(&mut engine, &ids[at..at + n]);
            at += n;
        }
        run
    });
    let mut pair = starts.map(|_| Run::start(&engine));
    let mut at = 0;
    for n in parts {
        for (run, start) in pair.iter_mut().zip(starts) {
            run.step(&mut engine, &ids[start + at..][..n]);
        }
        at += n;
    }
    for (run, alone) in pair.iter().zip(&alone) {
        assert_eq!(run.chosen, alone.chosen);
        assert_eq!(run.streams, alone.streams);
    }
    assert_ne!(alone[0].chosen, alone[1].chosen);
}

/// Index keys are f16 unless attention keys are f32, and know nothing of the values' type. The
/// first attention layer sees the same input whatever the cache.
#[test]
fn choices_do_not_depend_on_the_type_of_the_cache() {
    use KvType::{Bf16, F16, F32, Q4_0, Q8_0};
    let expected = Expected::load("tiny-qwen4exp");
    let ids: Vec<u32> = (0..150).map(|i| i * i * 7 % 570).collect();
    let choices = |(cache_k, cache_v)| {
        let options = EngineOptions { cache_k, cache_v, chunk: 40, ..EngineOptions::default() };
        let mut engine = Engine::load(&expected.model, &options, &mut |_, _| ()).unwrap();
        let mut run = Run::new(&mut engine, &ids[..120], 40);
        ids[120..].iter().for_each(|id| run.step(&mut engine, &[*id]));
        let il = run.chosen.iter().position(|queries| !queries.is_empty()).unwrap();
        run.chosen.swap_remove(il)
    };
    for (index, caches) in [
        (F16, &[(F16, F16), (F16, F32), (Q8_0, Q4_0), (Q4_0, Bf16), (Bf16, Q8_0)][..]),
        (F32, &[(F32, F32), (F32, Q8_0)]),
    ] {
        let first = choices(caches[0]);
        for cache in &caches[1..] {
            assert_eq!(choices(*cache), first, "index keys of {index}, cache {cache:?}");
        }
    }
}

/// The known slip of a converter: no layer has a ratio although there are indexers.
#[test]
fn ratios_that_a_converter_lost_run_sparse() {
    let expected = Expected::load("tiny-qwen4exp");
    let slip = described(&expected.model, |model| {
        model.set("qwen4exp.attention.compress_ratios", &[0i32; 8][..]);
    });
    let mut engine = load(slip.path(), as_it_is(), KvType::F32, 512);
    let prompt = expected.prompts.iter().max_by_key(|p| p.ids.len()).unwrap();
    compare_selected(&Run::new(&mut engine, &prompt.ids, 512), prompt, "without ratios");
}

fn logits(engine: &mut Engine, seq: &mut Sequence, ids: &[u32]) -> Vec<f32> {
    engine.prefill(seq, ids, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.logits(seq).unwrap()
}

/// The second attention layer made dense: the same up to the budget of 32 and a tail of 3, another
/// model past it.
#[test]
fn up_to_the_budget_attention_is_dense() {
    let expected = Expected::load("tiny-qwen4exp");
    let half_dense = described(&expected.model, |model| {
        model.set("qwen4exp.attention.compress_ratios", &[0i32, 0, 0, 4, 0, 0, 0, 0][..]);
    });
    let ids: Vec<u32> = (0..70).map(|i| i * 11 % 570).collect();
    let every: Vec<usize> = (0..ids.len()).collect();
    let [sparse, dense] = [expected.model.as_path(), half_dense.path()].map(|path| {
        let mut engine = load(path, as_it_is(), KvType::F32, 64);
        let mut seq = engine.new_sequence().unwrap();
        let mut rows = Vec::new();
        let mut sink = |_, logits| {
            rows.push(logits);
            Ok(())
        };
        engine.logits_of(&mut seq, &ids, 64, &every, &mut sink).unwrap();
        rows
    });
    let worst = |t: usize| {
        let pairs = sparse[t].iter().zip(&dense[t]);
        pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
    };
    assert!((0..35).all(|t| worst(t) <= FLOAT32_LIMIT));
    assert!((40..70).any(|t| worst(t) > 10.0 * FLOAT32_LIMIT), "all tokens are read");
}

/// A chunk inside the budget goes without a selection; steps after it find its index keys.
#[test]
fn chunks_inside_the_budget_leave_the_selection_out() {
    let expected = Expected::load("tiny-qwen4exp");
    let ids: Vec<u32> = (0..60).map(|i| i * 17 % 570).collect();
    let mut engine = load(&expected.model, as_it_is(), KvType::F32, 64);
    // The budget of 32 and a tail of 3 by two layers; of 36 tokens the last one leaves some out.
    let [dense, sparse] = [(35, 2 * 35), (36, 0)].map(|(first, queries)| {
        let before = engine.attention_reads();
        let mut seq = engine.new_sequence().unwrap();
        let mut rows = vec![logits(&mut engine, &mut seq, &ids[..first])];
        assert_eq!(engine.attention_reads().since(&before).dense_queries, queries);
        rows.extend(ids[first..].iter().map(|id| logits(&mut engine, &mut seq, &[*id])));
        assert_eq!(engine.attention_reads().since(&before).dense_queries, queries);
        rows
    });
    for (step, (a, b)) in dense[1..].iter().zip(&sparse).enumerate() {
        let pairs = a.iter().zip(b);
        let worst = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        assert!(worst <= FLOAT32_LIMIT, "{step} tokens on: logits differ by {worst}");
    }
}

/// Blocks of one token with a budget of a thousand: a chunk's selections exceed a binding, rows of
/// the layers do not.
#[test]
fn a_large_budget_shortens_the_steps() {
    let expected = Expected::load("tiny-qwen4exp");
    let large = described(&expected.model, |model| {
        model.set("qwen4exp.attention.compress_ratios", &[0i32, 0, 0, 1, 0, 0, 0, 1][..]);
        model.set("qwen4exp.attention.indexer.top_k", 1000u32);
    });
    let restrict = Restrictions { max_binding: Some(600 << 10), ..Restrictions::default() };
    let device = DeviceOptions { restrict, ..poisoned() };
    let mut engine = load(large.path(), device, KvType::F16, 512);
    assert_eq!(engine.chunk(), (600 << 10) / (2 * 1000 * 4));
    let mut seq = engine.new_sequence().unwrap();
    engine.synthetic_history(&mut seq, 1500).unwrap();
    let ids: Vec<u32> = (0..100).collect();
    logits(&mut engine, &mut seq, &ids);
    engine.argmax(&seq).unwrap();
}

#[test]
fn texts_that_end_inside_a_prompt() {
    let expected = Expected::load("tiny-qwen4exp");
    let eos = 576;
    let plain: Vec<u32> = (0..40).map(|i| i * 7 % 570).collect();
    let mut ended = plain.clone();
    for at in [0, 9, 10, 20, 22, 38] {
        ended[at] = eos;
    }
    let mut engine = load(&expected.model, as_it_is(), KvType::F32, 64);
    let mut seq = engine.new_sequence().unwrap();
    let whole = logits(&mut engine, &mut seq, &ended);
    for chunk in [1, 2, 3, 10] {
        let mut seq = engine.new_sequence().unwrap();
        let mut last = Vec::new();
        for part in ended.chunks(chunk) {
            last = logits(&mut engine, &mut seq, part);
        }
        for (a, b) in last.iter().zip(&whole) {
            assert!(f64::from((a - b).abs()) <= FLOAT32_LIMIT, "chunks of {chunk}: {a} and {b}");
        }
    }
}

#[test]
fn a_table_in_memory_gives_the_same_bits() {
    let expected = Expected::load("tiny-qwen4exp");
    let ids: Vec<u32> = (0..50).collect();
    let of = |ngram| {
        let options = EngineOptions { ngram, chunk: 64, ..EngineOptions::default() };
        let mut engine = Engine::load(&expected.model, &options, &mut |_, _| ()).unwrap();
        let mut seq = engine.new_sequence().unwrap();
        logits(&mut engine, &mut seq, &ids)
    };
    assert_eq!(of(Storage::Disk), of(Storage::Ram));
}

#[test]
fn a_row_that_cannot_be_read_breaks_one_sequence() {
    let expected = Expected::load("tiny-qwen4exp");
    let copy = described(&expected.model, |_| ());
    let bytes = fs::read(copy.path()).unwrap();
    let mut engine = load(copy.path(), as_it_is(), KvType::F16, 64);
    let mut seq = engine.new_sequence().unwrap();
    let before = logits(&mut engine, &mut seq, &[1, 2, 3]);
    let file = OpenOptions::new().write(true).open(copy.path()).unwrap();
    file.set_len(100).unwrap();
    let error = engine.decode(&mut seq, 4).unwrap_err().to_string();
    assert!(error.contains("per_layer_token_embd"), "{error}");
    assert!(engine.decode(&mut seq, 4).is_err(), "half a step was taken");
    (&file).write_all(&bytes).unwrap();
    engine.clear(&mut seq);
    assert_eq!(logits(&mut engine, &mut seq, &[1, 2, 3]), before);
}

/// The rows of the second chunk are read while the first one runs, and those of the third are not.
#[test]
fn rows_are_read_a_chunk_ahead() {
    let expected = Expected::load("tiny-qwen4exp");
    let ids: Vec<u32> = (0..40).map(|i| i * 13 % 570).collect();
    let mut engine = load(&expected.model, as_it_is(), KvType::F32, 16);
    let mut seq = engine.new_sequence().unwrap();
    let want = logits(&mut engine, &mut seq, &ids[..32]);
    let copy = described(&expected.model, |_| ());
    for (length, succeeds) in [(32, true), (40, false)] {
        let bytes = fs::read(copy.path()).unwrap();
        let mut engine = load(copy.path(), as_it_is(), KvType::F32, 16);
        let mut seq = engine.new_sequence().unwrap();
        let mut cut_file = |done| {
            if done == 16 {
                // Far longer than a few rows take.
                thread::sleep(Duration::from_millis(500));
                OpenOptions::new().write(true).open(copy.path()).unwrap().set_len(100).unwrap();
            }
            ControlFlow::Continue(())
        };
        let prefilled = engine.prefill(&mut seq, &ids[..length], &mut cut_file);
        assert_eq!(prefilled.is_ok(), succeeds, "{length} tokens: {prefilled:?}");
        if succeeds {
            assert_eq!(engine.logits(&seq).unwrap(), want);
        }
        fs::write(copy.path(), bytes).unwrap();
    }
}

#[test]
fn attention_layers_are_sparse() {
    let expected = Expected::load("tiny-qwen4exp");
    let engine = load(&expected.model, as_it_is(), KvType::F16, 16);
    let sparse = |kind: &&LayerKind| **kind == LayerKind::SparseAttention;
    assert_eq!(engine.config().layers.iter().filter(sparse).count(), 2);
    assert!(!engine.config().layers.contains(&LayerKind::Attention));
}
