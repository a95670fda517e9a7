//! Models with every type of the cache, keys and values apart.

use crate::common::{
    devices::{poisoned, small_bindings_and_grids},
    expected::Expected,
};
use engine::{
    Engine, EngineOptions,
    gpu::DeviceOptions,
    kv::KvType::{self, Bf16, F16, F32, Q4_0, Q8_0},
};

fn open(expected: &Expected, device: DeviceOptions, types: [KvType; 2], chunk: u32) -> Engine {
    let [cache_k, cache_v] = types;
    let options = EngineOptions { device, cache_k, cache_v, chunk, ..EngineOptions::default() };
    Engine::load(&expected.model, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Root mean square of the differences, as a share of that of the reference's logits.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    let squares = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let off = squares(&mut got.iter().zip(want).map(|(g, w)| g - w));
    (off / squares(&mut want.iter().copied())).sqrt()
}

/// The longest prompt in chunks, its end token by token: how far logits are from the reference's.
fn furthest(engine: &mut Engine, expected: &Expected, chunk: u32) -> f64 {
    let prompt = expected.prompts.iter().max_by_key(|p| p.ids.len()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    let cut = prompt.ids.len() - 8;
    let mut most: f64 = 0.0;
    for (ids, chunk, first) in [(&prompt.ids[..cut], chunk, 0), (&prompt.ids[cut..], 1, cut)] {
        let known = prompt.positions.iter().zip(&prompt.logits);
        let known: Vec<_> = known
            .filter_map(|(p, row)| Some((p.checked_sub(first)?, row)))
            .filter(|(p, _)| *p < ids.len())
            .collect();
        let wanted: Vec<usize> = known.iter().map(|(p, _)| *p).collect();
        let mut rows = known.iter().map(|(_, row)| row);
        engine
            .logits_of(&mut seq, ids, chunk, &wanted, &mut |_, got| {
                most = most.max(distance(&got, rows.next().unwrap()));
                Ok(())
            })
            .unwrap();
    }
    most
}

#[test]
fn logits_stay_near_the_reference_with_every_type() {
    for (model, types, limit) in [
        ("tiny-qwen3", [Bf16, Q8_0], 0.02),
        ("tiny-qwen3", [Q8_0, F16], 0.02),
        ("tiny-qwen3", [Q4_0, Q4_0], 0.3),
        ("tiny-qwen35moe", [Q8_0, Bf16], 0.02),
        // Small changes make it select other blocks.
        ("tiny-qwen4exp", [Bf16, Bf16], 0.1),
        ("tiny-qwen4exp", [Q8_0, Q8_0], 0.1),
        ("tiny-qwen4exp", [F16, Q4_0], 0.3),
    ] {
        let expected = Expected::load(model);
        let all = furthest(&mut open(&expected, poisoned(), types, 64), &expected, 64);
        assert!(all < limit, "{model}, {types:?}: {all}, not {limit}");
    }
}

/// Many segments, folded grids and checked shaders: sums are cut otherwise, so last bits differ, and
/// with quantised rows a value may round to another quant (both are 0.11 from the reference).
#[test]
fn segments_of_any_size() {
    let expected = Expected::load("tiny-qwen4exp");
    for (types, limit) in [([F32, F32], 1e-5), ([Q8_0, Q4_0], 1e-3)] {
        let [near, far] = [poisoned(), small_bindings_and_grids()]
            .map(|device| furthest(&mut open(&expected, device, types, 100), &expected, 100));
        assert!((near - far).abs() < limit, "{types:?}: {near} and {far}");
    }
}
