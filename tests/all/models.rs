//! Fixture models against the reference's logits, greedy tokens and layer values.

use crate::common::{
    devices::{
        as_it_is, int_dot, load, matrices, poisoned, small_bindings_and_grids, webgpu_defaults,
    },
    edited::{rescaled, scaled},
    expected::{Expected, FLOAT32_LIMIT, HIDDEN_LIMIT, Prompt, fixtures},
    forward64::Model,
    skipped,
};
use engine::{
    Engine,
    gpu::{DeviceOptions, Recorder},
    kv::KvType,
    model::{Observer, Part, Workspace},
    ops::Tensor,
};
use std::ops::ControlFlow;

const TINY: [&str; 7] = [
    "tiny-qwen35moe",
    "tiny-qwen35",
    "tiny-qwen3",
    "tiny-qwen3moe",
    "tiny-llama",
    "tiny-qwen35moe-mtp",
    "tiny-qwen4exp",
];
const MID: [&str; 2] = ["mid-qwen35moe-Q4_K_M", "mid-qwen35moe-Q8_0"];
const MID_SHARED: [&str; 12] = [
    "mid-qwen35moe-IQ4_NL",
    "mid-qwen35moe-IQ4_XS",
    "mid-qwen35moe-MXFP4_MOE",
    "mid-qwen35moe-Q2_K",
    "mid-qwen35moe-Q3_K_M",
    "mid-qwen35moe-Q4_0",
    "mid-qwen35moe-Q5_0",
    "mid-qwen35moe-Q5_K_M",
    "mid-qwen35moe-Q6_K",
    "mid-qwen4exp-Q8_0",
    "mid-qwen4exp-Q6_K",
    "mid-qwen4exp-Q4_K_M",
];

/// Largest difference at each stored position must stay within `limit`.
fn compare_logits(engine: &mut Engine, prompt: &Prompt, chunk: u32, limit: impl Fn(usize) -> f64) {
    let mut seq = engine.new_sequence().unwrap();
    let mut k = 0;
    let mut sink = |index: usize, logits: Vec<f32>| {
        assert_eq!(index, prompt.positions[k]);
        let worst = logits.iter().zip(&prompt.logits[k]).map(|(a, b)| f64::from((a - b).abs()));
        // `max` would pass over NaN.
        let worst = worst.fold(0.0, |m: f64, d| if d > m || d.is_nan() { d } else { m });
        println!("{} position {index}: {worst}", prompt.name);
        assert!(worst <= limit(k), "{} position {index}: {worst} over {}", prompt.name, limit(k));
        k += 1;
        Ok(())
    };
    engine.logits_of(&mut seq, &prompt.ids, chunk, &prompt.positions, &mut sink).unwrap();
    assert_eq!(k, prompt.positions.len());
}

/// The first `steps` tokens picked on the device, up to one whose gap is within `limit`.
fn compare_greedy(engine: &mut Engine, prompt: &Prompt, steps: usize, limit: f64) {
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &prompt.ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let expected = prompt.greedy.iter().zip(&prompt.greedy_gap);
    for (step, (want, gap)) in expected.take(steps).enumerate() {
        if *gap <= limit {
            return;
        }
        let token = engine.argmax(&seq).unwrap();
        assert_eq!(token, *want, "{} step {step}, gap {gap}", prompt.name);
        engine.decode(&mut seq, token).unwrap();
    }
}

fn compare_f32(expected: &Expected, device: &DeviceOptions, steps: usize) {
    let mut engine = load(&expected.model, device.clone(), KvType::F32, 512);
    for prompt in &expected.prompts {
        compare_logits(&mut engine, prompt, 512, |_| FLOAT32_LIMIT);
        compare_greedy(&mut engine, prompt, steps, FLOAT32_LIMIT);
    }
}

/// All greedy tokens of the reference.
const ALL: usize = 32;
/// Enough to see every decode kernel of a poorer device continue from its own state.
const SOME: usize = 8;

fn fixtures_with_f32_cache(device: &DeviceOptions, steps: usize) {
    for model in TINY.iter().chain(&MID) {
        println!("{model}");
        compare_f32(&Expected::load(model), device, steps);
    }
}

#[test]
fn models_with_f32_cache() {
    fixtures_with_f32_cache(&poisoned(), ALL);
}

#[test]
fn models_within_webgpu_defaults() {
    fixtures_with_f32_cache(&webgpu_defaults(), SOME);
}

#[test]
fn models_with_small_bindings_and_grids() {
    fixtures_with_f32_cache(&small_bindings_and_grids(), SOME);
}

#[test]
fn quantised_models_of_the_shared_reference() {
    for expected in MID_SHARED.iter().filter_map(|name| Expected::load_shared(name)) {
        compare_f32(&expected, &as_it_is(), SOME);
    }
}

#[test]
fn tiny_models_with_f16_cache_keep_every_greedy_token() {
    for model in TINY {
        let expected = Expected::load(model);
        let mut engine = load(&expected.model, as_it_is(), KvType::F16, 512);
        for prompt in &expected.prompts {
            println!("{model} {}", prompt.name);
            compare_logits(&mut engine, prompt, 512, |k| prompt.float16_limit(k));
            // The reference chose its prompts so that every token survives f16; ours did not.
            let own = model == "tiny-qwen3moe";
            let limit = if own { prompt.float16_limit(prompt.positions.len() - 1) } else { 0.0 };
            compare_greedy(&mut engine, prompt, ALL, limit);
        }
    }
}

/// Where adapters multiply bytes fast, few rows of x are rounded to 16 bits. Measured: up to 0.0028 at
/// one of 33 positions, 0.0016 at the others.
const WHOLE_LIMIT: f64 = 0.005;

#[test]
fn models_by_whole_numbers() {
    for expected in MID.map(Expected::load) {
        let mut engine = load(&expected.model, int_dot(), KvType::F32, 8);
        for prompt in &expected.prompts {
            compare_logits(&mut engine, prompt, 8, |_| WHOLE_LIMIT);
            compare_greedy(&mut engine, prompt, SOME, WHOLE_LIMIT);
        }
    }
}

/// Cooperative matrices take factors of 11 bits. Measured: up to 0.026, no more at the end of a prompt
/// than at its start.
const MATRICES_LIMIT: f64 = 0.05;

#[test]
fn models_by_cooperative_matrices() {
    for expected in MID.map(Expected::load) {
        let mut engine = load(&expected.model, matrices(), KvType::F16, 512);
        if engine.gpu().caps().matrices.is_none() {
            let name = &engine.gpu().adapter().name;
            return skipped(format_args!("{name} has no cooperative matrices"));
        }
        for prompt in &expected.prompts {
            compare_logits(&mut engine, prompt, 512, |_| MATRICES_LIMIT);
            compare_greedy(&mut engine, prompt, SOME, MATRICES_LIMIT);
        }
    }
}

/// Of the weights in f64.
#[test]
fn large_activations_by_whole_numbers_and_cooperative_matrices() {
    // Values and hidden values of every block are 2^20 times as large.
    let large = |name: &str| ["attn_v.", "ffn_up"].iter().any(|n| name.contains(n));
    let file = fixtures().join("models/mid-qwen35moe-Q8_0.gguf");
    let file = rescaled(&file, large, 2f32.powi(20));
    let model = Model::open(file.path());
    let mut state = model.state();
    let ids: Vec<u32> = (0..12).map(|i| i * 7 % 640).collect();
    let want: Vec<_> = ids.iter().map(|id| model.step(&mut state, *id)).collect();
    let made = want.iter().flat_map(|step| &step.layers).flat_map(|layer| &layer.ffn_out);
    let largest = made.fold(0.0, |m: f64, v| m.max(v.abs()));
    println!("experts make up to {largest}");
    assert!(largest > 1e6);
    for (device, chunks, kernel, limit) in [
        (int_dot(), [1, 8].as_slice(), " whole", WHOLE_LIMIT),
        (matrices(), &[16], "coop_product", MATRICES_LIMIT),
    ] {
        let mut engine = load(file.path(), device, KvType::F32, 16);
        if kernel == "coop_product" && engine.gpu().caps().matrices.is_none() {
            let name = &engine.gpu().adapter().name;
            skipped(format_args!("{name} has no cooperative matrices"));
            continue;
        }
        let every: Vec<usize> = (0..ids.len()).collect();
        for &chunk in chunks {
            let mut seq = engine.new_sequence().unwrap();
            let mut worst = 0.0_f64;
            let mut sink = |i: usize, logits: Vec<f32>| {
                for (got, want) in logits.iter().zip(&want[i].logits) {
                    let error = (f64::from(*got) - want).abs();
                    // Fails for NaN.
                    assert!(error <= limit, "{kernel}, position {i}: {got} instead of {want}");
                    worst = worst.max(error);
                }
                Ok(())
            };
            engine.logits_of(&mut seq, &ids, chunk, &every, &mut sink).unwrap();
            println!("{kernel}, {chunk} at a time: {worst}");
        }
        let names = engine.gpu().kernel_names();
        assert!(names.iter().any(|name| name.contains(kernel)), "{names:?}");
    }
}

/// What every part of every layer adds and leaves.
#[derive(Default)]
struct Taps(Vec<Tap>);

struct Tap {
    il: usize,
    part: Part,
    /// Residual streams.
    x: Tensor,
    /// What the block has added to the stream, or made for all streams.
    residual: Tensor,
}

impl Observer for Taps {
    fn after(&mut self, rec: &mut Recorder, il: usize, part: Part, ws: &Workspace, n: u32) {
        let mut copy = |from: &Tensor| {
            let bytes = u64::from(n * from.width) * 4;
            let tap = Tensor::scratch(rec.gpu(), "tap", n, from.width).unwrap();
            rec.copy(&from.buf, 0, &tap.buf, 0, bytes);
            tap
        };
        let (x, residual) = (copy(&ws.x), copy(&ws.residual));
        self.0.push(Tap { il, part, x, residual });
    }
}

/// Within the stated share of the row's norm.
fn compare_rows(got: &[f32], want: &[Vec<f32>], streams: &[Vec<f32>], at: &str) {
    for ((got, want), stream) in got.chunks(want[0].len()).zip(want).zip(streams) {
        let norm = stream.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        for (g, w) in got.iter().zip(want) {
            let error = f64::from((g - w).abs());
            assert!(error <= HIDDEN_LIMIT * norm, "{at}: {g} instead of {w}, norm {norm}");
        }
    }
}

#[test]
fn every_layer_matches_the_trace() {
    for model in TINY {
        let expected = Expected::load(model);
        let mut engine = load(&expected.model, as_it_is(), KvType::F32, 64);
        let Some((prompt, trace)) =
            expected.prompts.iter().find_map(|p| Some((p, p.trace.as_ref()?)))
        else {
            // Generated here, from the f64 forward pass, without a trace.
            assert_eq!(model, "tiny-qwen3moe");
            continue;
        };
        let mut seq = engine.new_sequence().unwrap();
        let mut taps = Taps::default();
        engine.observe(&mut seq, &prompt.ids, &mut taps).unwrap();
        let read = |t: &Tensor| t.read(engine.gpu(), t.rows).unwrap();
        let streams = engine.config().n_streams();
        let copies = |row: &Vec<f32>| row.repeat(streams as usize);
        let mut before: Vec<f32> = trace.embed.iter().flat_map(copies).collect();
        for tap in &taps.0 {
            let (layer, x) = (&trace.layers[tap.il], read(&tap.x));
            let at = format!("{model} layer {} {:?}", tap.il, tap.part);
            let change = || x.iter().zip(&before).map(|(a, b)| a - b).collect();
            let added: Vec<f32> = match tap.part {
                Part::Mixer | Part::Ffn if streams > 1 => read(&tap.residual),
                _ => change(),
            };
            let want = match tap.part {
                Part::Ngram => &trace.ngram_out,
                Part::Mixer => &layer.mixer_out,
                Part::Ffn => &layer.ffn_out,
            };
            compare_rows(&added, want, &layer.layer_out, &at);
            if tap.part == Part::Ffn {
                compare_rows(&x, &layer.layer_out, &layer.layer_out, &at);
            }
            before = x;
        }
        let ngram = usize::from(!trace.ngram_out.is_empty());
        assert_eq!(taps.0.len(), 2 * trace.layers.len() + ngram);
    }
}

#[test]
fn f32_activations_pass_the_half_range() {
    // Values and hidden values of every block reach 1e6 and more.
    let names = ["attn_v.", "ffn_up", "ple_value", "indexer.k_proj"];
    let large = |name: &str| names.iter().any(|n| name.contains(n));
    for model in ["tiny-qwen35moe", "tiny-qwen4exp"] {
        let scaled = scaled(&fixtures().join(format!("models/{model}.gguf")), large, 1e6);
        for chunk in [1, 8, 9, 64] {
            let mut engine = load(scaled.path(), as_it_is(), KvType::F16, chunk);
            let mut seq = engine.new_sequence().unwrap();
            let ids: Vec<u32> = (0..70).map(|i| i * 7 % 640).collect();
            engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
            assert!(engine.logits(&seq).unwrap().iter().all(|l| l.is_finite()), "{model}");
            engine.argmax(&seq).unwrap();
        }
    }
}
