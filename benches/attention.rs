//! Speed of attention at the heads of Qwen3.5-35B-A3B (16 query and 2 key-value heads of 256, f16
//! cache): cache bytes a second of a decode step, tokens and operations a second of prefill.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench attention
//!
//! (Cargo turns the threads of software Vulkan off for the sake of tests.)

mod timing;

use engine::{
    Result,
    gpu::{DeviceOptions, Gpu, Heap, MemoryKind, Recorder},
    kv::{KvLayer, KvStep, KvType},
    ops::{
        Tensor,
        attention::{self, AttentionScratch},
    },
};
use timing::{range, spread};

const N_HEAD: u32 = 16;
const N_KV: u32 = 2;
const HEAD_DIM: u32 = 256;

fn main() -> Result<()> {
    let gpu = Gpu::open(&DeviceOptions::default())?;
    println!("{}, {}", gpu.adapter().name, gpu.adapter().driver);
    for (n, depth) in [(1, 512), (1, 4096), (1, 16384), (2, 4096), (8, 4096)] {
        let seconds = time(&gpu, n, depth)?;
        let bytes = 2.0 * KvType::F16.bytes((N_KV * HEAD_DIM).into()) as f64 * f64::from(depth);
        let gb = seconds.map(|s| bytes / s / 1e9);
        let time = spread(seconds, 1e3, "ms");
        println!("decode  n {n:3} at {depth:5}: {time}  {} GB/s of cache", range(gb));
    }
    for (n, depth) in [(64, 4096), (512, 512), (512, 4096)] {
        let seconds = time(&gpu, n, depth)?;
        // Two products with each key that a query sees.
        let keys = f64::from(n) * (f64::from(depth - n) + f64::from(n + 1) / 2.0);
        let operations = keys * f64::from(N_HEAD * HEAD_DIM) * 4.0;
        let gflops = seconds.map(|s| operations / s / 1e9);
        let time = spread(seconds, 1e3, "ms");
        println!("prefill n {n:3} at {depth:5}: {time}  {} GFLOP/s", range(gflops));
    }
    Ok(())
}

/// Seconds for the last `n` of `depth` tokens: fastest, median and slowest.
fn time(gpu: &Gpu, n: u32, depth: u32) -> Result<[f64; 3]> {
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
    timing::seconds(gpu, &rec.finish()?, &out)
}
