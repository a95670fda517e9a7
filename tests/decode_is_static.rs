//! Decoding creates nothing: invariant of the design, counted.

mod common;

use common::{devices::load, expected::fixtures};
use engine::{gpu::DeviceOptions, kv::KvType};
use std::ops::ControlFlow;

#[test]
fn after_the_first_decode_step_nothing_is_created() {
    for model in ["tiny-qwen35moe", "tiny-qwen35", "tiny-qwen3moe", "tiny-llama", "tiny-qwen4exp"] {
        let path = fixtures().join(format!("models/{model}.gguf"));
        let mut engine = load(&path, DeviceOptions::default(), KvType::F16, 64);
        let mut seq = engine.new_sequence().unwrap();
        engine.prefill(&mut seq, &[1, 2, 3], &mut |_| ControlFlow::Continue(())).unwrap();
        let token = engine.argmax(&seq).unwrap();
        engine.decode(&mut seq, token).unwrap();
        let before = engine.counters();
        for _ in 0..40 {
            let token = engine.argmax(&seq).unwrap();
            engine.decode(&mut seq, token).unwrap();
            engine.logits(&seq).unwrap();
        }
        assert_eq!(engine.counters(), before, "{model}");
        println!("{model}: {:?} dispatches a token", seq.dispatches_per_token());
    }
}
