//! Speed of attention at the heads of Qwen3.5-35B-A3B (16 query and 2 key-value heads of 256, f16
//! cache), by bytes of the cache and operations.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench attention
//!
//! (Cargo turns the threads of software Vulkan off for the sake of tests.)

mod timing;

use engine::{
    Result,
    gpu::{Heap, MemoryKind, Recorder, Restrictions},
    kv::{KvLayer, KvStep, KvType},
    ops::{
        Tensor,
        attention::{self, AttentionScratch},
    },
};
use timing::{Bench, Work};

const N_HEAD: u32 = 16;
const N_KV: u32 = 2;
const HEAD_DIM: u32 = 256;

fn main() -> Result<()> {
    let bench = Bench::open(Restrictions::default())?;
    for (n, depth) in [(1, 512), (1, 4096), (1, 16384), (2, 4096), (8, 4096)] {
        measure(&bench, &format!("decode n {n} at {depth}"), n, depth)?;
    }
    for (n, depth) in [(64, 4096), (512, 512), (512, 4096)] {
        measure(&bench, &format!("prefill n {n} at {depth}"), n, depth)?;
    }
    Ok(())
}

/// Prints the line of the last `n` of `depth` tokens.
fn measure(bench: &Bench, name: &str, n: u32, depth: u32) -> Result<()> {
    let gpu = &bench.gpu;
    let mut kv = KvLayer::new(gpu, N_KV, HEAD_DIM, KvType::F16, KvType::F16)?;
    kv.ensure(gpu, depth, depth, Heap::Device)?;
    for segment in kv.segments() {
        // 0.5 and -0.25 in turn.
        let values = vec![0xb400_3800_u32; segment.k.size() as usize / 4];
        gpu.upload(&segment.k, 0, bytemuck::cast_slice(&values))?;
        gpu.upload(&segment.v, 0, bytemuck::cast_slice(&values))?;
    }
    let positions: Vec<u32> = (depth - n..depth).collect();
    let buf = gpu.alloc("positions", u64::from(n) * 4, MemoryKind::Scratch)?;
    gpu.upload(&buf, 0, bytemuck::cast_slice(&positions))?;
    let step = KvStep { layer: &kv, positions: &buf, span: kv.span(depth - n, n)?, staging: None };
    let width = N_HEAD * HEAD_DIM;
    let wave: Vec<f32> = (0..n * width).map(|i| (f64::from(i) * 0.7).sin() as f32).collect();
    let q = Tensor::upload(gpu, "q", &wave, width, MemoryKind::Scratch)?;
    let out = Tensor::scratch(gpu, "out", n, width)?;
    let scratch = AttentionScratch::new(gpu, N_HEAD, HEAD_DIM, n, 1)?;
    let mut rec = Recorder::new(gpu);
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();
    attention::record(&mut rec, &q, None, step, &scratch, &out, n, scale)?;
    // Two products with each key that a query sees.
    let keys = f64::from(n) * (f64::from(depth - n) + f64::from(n + 1) / 2.0);
    let work = Work {
        bytes: Some(2.0 * KvType::F16.bytes((N_KV * HEAD_DIM).into()) as f64 * f64::from(depth)),
        operations: keys * f64::from(N_HEAD * HEAD_DIM) * 4.0,
    };
    bench.line(name, &rec.finish()?, 1, work)
}
