//! Experts in host memory: the same bits, and nothing but experts there.

use crate::common::{devices::poisoned, expected::fixtures};
use engine::{Engine, EngineOptions, gpu::MemoryReport};
use std::ops::ControlFlow;

/// Logits after a prompt and after a decoded token, and the memory then.
fn answer(experts_host: u32) -> (Vec<Vec<f32>>, MemoryReport) {
    let path = fixtures().join("models/tiny-qwen35moe.gguf");
    let options = EngineOptions { device: poisoned(), experts_host, ..EngineOptions::default() };
    let mut engine = Engine::load(&path, &options, &mut |_, _| ()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    let ids: Vec<u32> = (1..40).collect();
    engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut logits = vec![engine.logits(&seq).unwrap()];
    engine.decode(&mut seq, 7).unwrap();
    logits.push(engine.logits(&seq).unwrap());
    (logits, engine.memory())
}

#[test]
fn experts_give_the_same_bits_wherever_they_are() {
    let (want, device) = answer(0);
    let (first, one) = answer(1);
    let (every, all) = answer(u32::MAX);
    assert!(first == want && every == want);
    assert_eq!(device.host.weights, 0);
    assert!(0 < one.host.weights && one.host.weights < all.host.weights);
    for moved in [one, all] {
        let together = moved.host.weights + moved.device.weights;
        assert_eq!(together, device.device.weights);
        assert_eq!(moved.host.total, moved.host.weights);
    }
}
