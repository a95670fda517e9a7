//! Speed of a layer's routed experts of every type at the sizes of Qwen3.5-35B-A3B (2048 values, experts
//! of 512, 8 a token; 64 of them instead of 256), by bytes of the experts that are read.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench experts -- Q4_K
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.)

mod random;
mod timing;

use engine::{
    Result,
    gpu::{Gpu, Heap, Recorder, Restrictions},
    ops::{
        Matrix, Routing, Source, Tensor,
        experts::{self, ExpertScratch, Experts},
        gated_product::GateUp,
        quantise, routing,
    },
    quant::BlockType,
};
use std::collections::BTreeSet;
use timing::{Bench, Work};

const EMBD: u32 = 2048;
const FF: u32 = 512;
const EXPERTS: u32 = 64;
/// Experts a token.
const K: u32 = 8;
/// One token, some, and a part of a prompt.
const TOKENS: [u32; 3] = [1, 8, 128];

fn main() -> Result<()> {
    for int_dot in [false, true] {
        let restrict = Restrictions { int_dot: Some(int_dot), ..Restrictions::default() };
        let bench = Bench::open(restrict)?;
        for &ty in BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu()) {
            let form = if int_dot { " whole" } else { "" };
            let name = |n: &u32| format!("experts{form} {ty} n {n}");
            if !TOKENS.iter().any(|n| bench.wants(&name(n))) {
                continue;
            }
            let experts = random_experts(&bench.gpu, ty)?;
            for n in TOKENS {
                measure(&bench, &name(&n), &experts, n)?;
            }
        }
    }
    Ok(())
}

fn random_experts(gpu: &Gpu, ty: BlockType) -> Result<Experts> {
    let rows = random::weights(ty, (EMBD * FF).into());
    // Every expert has the same weights: its own bytes nevertheless.
    let source = Source { ty, rows: &|_| &rows, factors: None, used: &|_| () };
    Ok(Experts {
        gate_up: GateUp::upload(gpu, Heap::Device, "up", [EMBD, FF, EXPERTS], source, source)?,
        down: Matrix::upload(gpu, Heap::Device, "down", [FF, EMBD, EXPERTS], source)?,
    })
}

fn measure(bench: &Bench, name: &str, stack: &Experts, n: u32) -> Result<()> {
    let gpu = &bench.gpu;
    let x = Tensor::factor(gpu, "x", n, EMBD, n)?;
    gpu.upload(&x.buf, 0, bytemuck::cast_slice(&random::values(n * EMBD)))?;
    let logits = Tensor::scratch(gpu, "logits", n, EXPERTS)?;
    gpu.upload(&logits.buf, 0, bytemuck::cast_slice(&random::values(n * EXPERTS)))?;
    let (y, routing) = (Tensor::scratch(gpu, "y", n, EMBD)?, Routing::new(gpu, n, K)?);
    let mut rec = Recorder::new(gpu);
    quantise::record(&mut rec, &x, n)?;
    routing::record(&mut rec, &logits, &routing, n, K, 1.0)?;
    gpu.submit(&rec.finish()?)?;
    let ids = gpu.read(&routing.ids, 0, u64::from(n * K) * 4)?;
    let chosen: BTreeSet<u32> = bytemuck::pod_collect_to_vec(&ids).into_iter().collect();

    let scratch = ExpertScratch::new(gpu, n, K, EXPERTS, FF, EMBD)?;
    let mut rec = Recorder::new(gpu);
    experts::record(&mut rec, stack, &x, &routing, &scratch, &y, n)?;
    let of_one = (stack.gate_up.bytes() + stack.down.bytes()) as f64 / f64::from(EXPERTS);
    let work = Work {
        bytes: Some(of_one * chosen.len() as f64),
        operations: 6.0 * f64::from(n * K) * f64::from(EMBD * FF),
    };
    bench.line(name, &rec.finish()?, 1, work)
}
