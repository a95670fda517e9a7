//! Mixture of experts: routing, products of chosen experts and the shared one.

use super::KernelCheck;
use crate::{
    Result,
    gpu::Heap,
    ops::{
        Matrix, Routing,
        experts::{self, ExpertScratch, Experts},
        gated_product::GateUp,
        reference::{self, Deviation, Stored, random},
        routing::{self, SharedExpert},
    },
    quant::BlockType,
    selftest::lab::Lab,
};

const N_EXPERT: usize = 16;
const N_EMBD: usize = 512;
const N_FF: usize = 256;
/// Experts a token.
const SLOTS: usize = 4;
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    use BlockType::{Q4K, Q6K, Q8_0};
    let routes = [(256, 8), (640, 10)].map(|(experts, k)| {
        KernelCheck::new(format!("routing to {k} of {experts}"), move |lab| route(lab, experts, k))
    });
    let stacks = [[Q4K, Q4K, Q6K], [Q8_0, Q8_0, Q8_0]].into_iter().flat_map(|types| {
        [("few tokens", 2), ("many tokens", 40)].map(|(tokens, n)| {
            let name = format!("experts {} and {}, {tokens}", types[0], types[2]);
            KernelCheck::new(name, move |lab| products(lab, types, n))
        })
    });
    routes.into_iter().chain(stacks).collect()
}

fn route(lab: &Lab, experts: usize, k: usize) -> Result<Vec<Deviation>> {
    const TOKENS: usize = 3;
    let logits: Vec<f32> = random(1, TOKENS * experts).iter().map(|v| v * 9.0).collect();
    let routing = Routing::new(&lab.gpu, TOKENS as u32, k as u32)?;
    let logits_t = lab.upload(&logits, experts)?;
    lab.run(|rec| routing::record(rec, &logits_t, &routing, TOKENS as u32, k as u32, 1.5))?;
    let (ids, weights): (Vec<_>, Vec<_>) =
        logits.chunks(experts).map(|row| reference::routing::route(row, k, 1.5)).unzip();
    Ok(vec![
        Deviation::of("expert", lab.words(&routing.ids, TOKENS * k)?, ids.concat(), 0.0),
        Deviation::of("weight", lab.values(&routing.weights)?, weights.concat(), LIMIT),
    ])
}

fn products(lab: &Lab, types: [BlockType; 3], n: usize) -> Result<Vec<Deviation>> {
    let (gpu, embd, ff, count) = (&lab.gpu, N_EMBD as u32, N_FF as u32, N_EXPERT as u32);
    let gate = Stored::new(types[0], 1, [N_EXPERT, N_FF, N_EMBD]);
    let up = Stored::new(types[1], 2, [N_EXPERT, N_FF, N_EMBD]);
    let down = Stored::new(types[2], 3, [N_EXPERT, N_EMBD, N_FF]);
    let gate_up = gate.with(|gate| {
        up.with(|up| GateUp::upload(gpu, Heap::Device, "gate, up", [embd, ff, count], gate, up))
    })?;
    let experts = Experts {
        gate_up,
        down: down
            .with(|down| Matrix::upload(gpu, Heap::Device, "down", [ff, embd, count], down))?,
    };
    // No expert twice for a token; the one in the middle gets most of the tokens, the last none.
    let ids: Vec<u32> = (0..n * SLOTS)
        .map(|pair| (pair / SLOTS, pair % SLOTS))
        .map(|(token, slot)| if slot == 0 { 7 } else { ((token + 2 * slot) % 7) as u32 })
        .collect();
    let (x, before, weights) = (random(4, n * N_EMBD), random(5, n * N_EMBD), random(6, n * SLOTS));
    let (gates, out) = (random(7, n), random(8, n * N_EMBD));
    let routing = Routing {
        ids: lab.upload_words(&ids)?,
        weights: lab.upload(&weights, SLOTS)?,
        shared: Some(SharedExpert { gate: lab.upload(&gates, 1)?, out: lab.upload(&out, N_EMBD)? }),
    };
    let scratch = ExpertScratch::new(gpu, n as u32, SLOTS as u32, count, ff, embd)?;
    let (x_t, y) = (lab.upload(&x, N_EMBD)?, lab.upload(&before, N_EMBD)?);
    lab.run(|rec| experts::record(rec, &experts, &x_t, &routing, &scratch, &y, n as u32))?;
    let stack = reference::experts::Weights {
        gate: &gate.values,
        up: &up.values,
        down: &down.values,
        n_embd: N_EMBD,
        n_ff: N_FF,
    };
    let mut want = stack.add(&before, &x, &ids, &weights);
    let shared = out.iter().enumerate().map(|(i, v)| f64::from(gates[i / N_EMBD]) * f64::from(*v));
    want.iter_mut().zip(shared).for_each(|(want, shared)| *want += shared);
    Ok(vec![Deviation::of("y", lab.values(&y)?, want, lab.product_limit(n))])
}
