//! Experts that tokens choose, few and many, against f64.

use super::*;
use crate::{
    gpu::Heap,
    ops::{
        reference,
        testing::{Stored, TestDevice, assert_close, each_device, each_form, random},
    },
    quant::BlockType,
};

/// Shapes and types of one case.
#[derive(Clone, Copy)]
struct Case {
    types: [BlockType; 3],
    n_expert: usize,
    n_embd: usize,
    n_ff: usize,
    k: usize,
    /// Largest of x.
    size: f32,
    /// Few tokens are multiplied as whole numbers, where the device does that.
    whole: bool,
}

const SMALL: Case = Case {
    types: [BlockType::Q8_0, BlockType::Q8_0, BlockType::Q4_0],
    n_expert: 6,
    n_embd: 64,
    n_ff: 32,
    k: 2,
    size: 1.0,
    whole: true,
};

impl Case {
    /// Routes `n` tokens as `ids` says, on a fresh scratch; returns y and what it should be.
    fn run(&self, t: &TestDevice, n: usize, ids: &[u32]) -> (Vec<f32>, Vec<f64>) {
        let Self { types, n_expert, n_embd, n_ff, k, size, whole } = *self;
        let gate = Stored::new(types[0], 1, [n_expert, n_ff, n_embd]);
        let up = Stored::new(types[1], 2, [n_expert, n_ff, n_embd]);
        let (embd, ff, e) = (n_embd as u32, n_ff as u32, n_expert as u32);
        let gate_up = gate.with(|g| {
            up.with(|u| GateUp::upload(&t.gpu, Heap::Device, "experts", [embd, ff, e], g, u))
        });
        let (down, down_values) = t.weights(types[2], [n_expert, n_embd, n_ff]);
        let experts = Experts { gate_up: gate_up.unwrap_or_else(|e| panic!("{e}")), down };

        let x: Vec<f32> = random(n as u64, n * n_embd).iter().map(|v| v * size).collect();
        let before = random(8, n * n_embd);
        let weights = random(9, n * k);
        let mut routing = Routing::new(&t.gpu, n as u32, k as u32).unwrap();
        t.gpu.upload(&routing.ids, 0, bytemuck::cast_slice(ids)).unwrap();
        routing.weights = t.upload(&weights, k);
        // Every other time there is a shared expert.
        let (gates, out) = (random(10, n), random(11, n * n_embd));
        let shared = n.is_multiple_of(2);
        routing.shared =
            shared.then(|| SharedExpert { gate: t.upload(&gates, 1), out: t.upload(&out, n_embd) });
        let mut scratch = ExpertScratch::new(&t.gpu, n as u32, k as u32, e, ff, embd).unwrap();
        scratch.h.whole.take_if(|_| !whole);
        let x_t = if whole { t.factor(&x, n_embd) } else { t.upload(&x, n_embd) };
        let y = t.upload(&before, n_embd);
        t.run(|rec| record(rec, &experts, &x_t, &routing, &scratch, &y, n as u32));

        let stack = reference::experts::Weights {
            gate: &gate.values,
            up: &up.values,
            down: &down_values,
            n_embd,
            n_ff,
        };
        let mut want = stack.add(&before, &x, ids, &weights);
        for (i, want) in want.iter_mut().enumerate().filter(|_| shared) {
            *want += f64::from(gates[i / n_embd]) * f64::from(out[i]);
        }
        (t.read(&y), want)
    }

    fn check(&self, t: &TestDevice, n: usize, ids: &[u32]) {
        self.check_to(t, n, ids, 1e-5);
    }

    fn check_to(&self, t: &TestDevice, n: usize, ids: &[u32], near: f64) {
        println!("{} tokens of {} experts, {:?}", n, self.n_expert, self.types);
        let (got, want) = self.run(t, n, ids);
        let whole = self.whole && t.gpu.caps().int_dot && n <= FEW as usize;
        assert_close(&got, &want, if whole { 1e-4 } else { near });
    }
}

/// `k` different experts of `n_expert` for each of `n` tokens.
fn choose(n: usize, k: usize, n_expert: usize) -> Vec<u32> {
    let ids = (0..n).flat_map(|t| (0..k).map(move |s| (t * t + s) % n_expert));
    ids.map(|e| e as u32).collect()
}

#[test]
fn few_and_many_tokens() {
    each_device(|t| {
        for n in [1, 2, 8, 9, 17, 65, 150] {
            SMALL.check(t, n, &choose(n, 2, 6));
        }
    });
}

#[test]
fn every_type() {
    use BlockType::*;
    each_form(|t, ty, whole| {
        // Floats have no form for whole numbers.
        let numbers = ty.block_elements() > 1;
        if whole && !numbers {
            return;
        }
        // Gate and up of one type, and of two.
        let types = if ty == Q4K { [Q4K, Q6K, Q4K] } else { [ty; 3] };
        let case = Case { types, n_expert: 3, n_embd: 256, n_ff: 256, whole, ..SMALL };
        case.check(t, 1, &choose(1, 2, 3));
        if !whole {
            case.check(t, 10, &choose(10, 2, 3));
        }
        let format = format!("format={}", ty.planes().expect("runs").format);
        for shader in ["expert_down ", "mat_vec "] {
            let ran = |k: &String| {
                let mut words = k.split(' ');
                let experts = shader != "mat_vec " || k.contains(" experts");
                k.starts_with(shader)
                    && experts
                    && words.any(|w| w == format)
                    && k.contains(" whole") == whole
            };
            assert!(t.gpu.kernel_names().iter().any(ran), "{ty}, whole: {whole}");
        }
    });
    each_device(|t| {
        let odd = Case { types: [F32; 3], n_expert: 3, n_embd: 33, n_ff: 7, k: 1, ..SMALL };
        odd.check(t, 3, &[2, 0, 2]);
        odd.check(t, 9, &[2, 0, 2, 1, 1, 0, 2, 2, 2]);
    });
}

/// What their experts make is a million times as large again.
#[test]
fn activations_of_a_million_stay_exact() {
    use BlockType::{Q4K, Q6K};
    each_device(|t| {
        for whole in [true, false] {
            let large = Case { size: 1e6, whole, ..SMALL };
            for n in [1, 8, 9] {
                large.check(t, n, &choose(n, 2, 6));
            }
        }
        let types = [Q4K, Q4K, Q6K];
        let wide = Case { types, n_expert: 3, n_embd: 256, n_ff: 256, size: 1e6, ..SMALL };
        wide.check(t, 1, &choose(1, 2, 3));
    });
}

#[test]
fn for_software() {
    let t = TestDevice::software();
    for n in [1, 8] {
        SMALL.check(&t, n, &choose(n, 2, 6));
    }
    use BlockType::{F32, Q4K, Q6K};
    let types = [Q4K, Q4K, Q6K];
    let wide = Case { types, n_expert: 3, n_embd: 512, n_ff: 256, ..SMALL };
    wide.check(&t, 2, &choose(2, 2, 3));
    let odd = Case { types: [F32; 3], n_expert: 3, n_embd: 33, n_ff: 7, k: 1, ..SMALL };
    odd.check(&t, 3, &[2, 0, 2]);
    let names = t.gpu.kernel_names();
    assert!(names.iter().any(|k| k.starts_with("expert_down") && k.contains("LANES=1 ")));
}

#[test]
fn by_cooperative_matrices() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for n in [9, 65] {
        SMALL.check_to(&t, n, &choose(n, 2, 6), 2e-3);
    }
    Case { size: 1e6, ..SMALL }.check_to(&t, 9, &choose(9, 2, 6), 2e-3);
    // Groups of no token, of one and of more than a tile.
    let one = Case { k: 1, ..SMALL };
    let ids: Vec<u32> = (0..90).map(|t| if t == 40 { 5 } else { 2 }).collect();
    one.check_to(&t, 90, &ids, 2e-3);
    let apart = Case { types: [BlockType::Q8_0, BlockType::F16, BlockType::F32], ..SMALL };
    apart.check_to(&t, 20, &choose(20, 2, 6), 2e-3);
    let used = t.gpu.kernel_names();
    assert!(used.iter().any(|k| k.starts_with("coop_product") && k.contains("experts")));
}

#[test]
fn all_tokens_on_one_expert_and_unused_experts() {
    each_device(|t| {
        let one = Case { k: 1, ..SMALL };
        for n in [3, 70] {
            for e in [0, 5] {
                one.check(t, n, &vec![e; n]);
            }
        }
    });
}

#[test]
fn every_token_on_every_expert() {
    each_device(|t| {
        let all = Case { k: 6, ..SMALL };
        for n in [2, 20] {
            let ids: Vec<u32> = (0..n).flat_map(|t| (0..6).map(move |s| (t + s) % 6)).collect();
            all.check(t, n as usize, &ids);
        }
    });
}

#[test]
fn more_sums_than_workgroup_memory_holds() {
    let many = Case { n_expert: 33, n_ff: 1024, k: 32, ..SMALL };
    each_device(|t| many.check_to(t, 1, &choose(1, 32, 33), 1e-4));
}

#[test]
fn split_stacks_give_the_same_bits_and_small_scratch_takes_several_passes() {
    let (whole, small) = (TestDevice::with_binding(1 << 20), TestDevice::with_binding(6144));
    for n in [2, 20] {
        let ids = choose(n, 2, 6);
        let (one, want) = SMALL.run(&whole, n, &ids);
        let (many, _) = SMALL.run(&small, n, &ids);
        assert_close(&one, &want, 1e-4);
        assert_eq!(one, many);
    }
    // 3 tokens at a time.
    let wide = Case { n_embd: 256, ..SMALL };
    wide.check(&small, 6, &choose(6, 2, 6));
}

#[test]
fn the_same_result_every_time() {
    each_device(|t| {
        let ids = choose(40, 2, 6);
        assert_eq!(SMALL.run(t, 40, &ids).0, SMALL.run(t, 40, &ids).0);
    });
}
