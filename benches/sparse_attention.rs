//! Time of a layer's block selection and sparse attention by depth, at the sizes of
//! Qwen3.8-Flash-Next (24 query and 2 kv heads of 256, indexer of 4 heads of 128, blocks of 4,
//! budget 2048): decode of one token, and a prefill chunk. Only the scan of pooled keys may grow.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench sparse_attention
//!
//! (Cargo turns the threads of software Vulkan off for the sake of tests.)

mod timing;

use engine::{
    Result,
    gpu::{Heap, MemoryKind, Recorder, Restrictions},
    kv::{IndexLayer, IndexShape, IndexStep, KvLayer, KvStep, KvType},
    ops::{
        Tensor,
        attention::AttentionScratch,
        select_blocks,
        sparse_attention::{self, GatherScratch},
        top_blocks::Selection,
    },
};
use timing::{Bench, Work};

const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };
const N_HEAD: u32 = 24;
const N_KV: u32 = 2;
const HEAD_DIM: u32 = 256;

fn main() -> Result<()> {
    let bench = Bench::open(Restrictions::default())?;
    for n in [1, 64] {
        for depth in [4096, 32_768, 262_144] {
            measure(&bench, n, depth)?;
        }
    }
    Ok(())
}

/// Prints the lines of the last `n` tokens of a context of `depth`.
fn measure(bench: &Bench, n: u32, depth: u32) -> Result<()> {
    let gpu = &bench.gpu;
    let filled = |label, rows: u32, width: u32| {
        let wave = |i: u32| (f64::from(i) * 0.7).sin() as f32;
        let values: Vec<f32> = (0..rows * width).map(wave).collect();
        Tensor::upload(gpu, label, &values, width, MemoryKind::Scratch)
    };
    let mut kv = KvLayer::new(gpu, N_KV, HEAD_DIM, KvType::F16, KvType::F16)?;
    kv.ensure(gpu, depth, depth, Heap::Device)?;
    let mut index = IndexLayer::new(SHAPE, KvType::F16)?;
    index.follow(gpu, &kv, depth)?;
    for pooled in index.pooled() {
        // Different keys: f16 values from 0.25 to 0.5, of either sign.
        let words = pooled.keys.size() as u32 / 4;
        let key = |i: u32| i.wrapping_mul(2_654_435_769) & 0x83ff_83ff | 0x3400_3400;
        let bits: Vec<u32> = (0..words).map(key).collect();
        gpu.upload(&pooled.keys, 0, bytemuck::cast_slice(&bits))?;
    }
    let positions: Vec<u32> = (depth - n..depth).collect();
    let positions_buf = gpu.alloc("positions", u64::from(n) * 4, MemoryKind::Scratch)?;
    gpu.upload(&positions_buf, 0, bytemuck::cast_slice(&positions))?;
    let positions = &positions_buf;
    let span = kv.span(depth - n, n)?;
    let iq = filled("index queries", n, SHAPE.heads * SHAPE.head_dim)?;
    let q = filled("q", n, N_HEAD * HEAD_DIM)?;
    let out = Tensor::scratch(gpu, "out", n, N_HEAD * HEAD_DIM)?;
    let selection = Selection::new(gpu, SHAPE, n)?;
    let select_scratch = select_blocks::SelectScratch::new(gpu, SHAPE, n, depth)?;
    let scratch = AttentionScratch::new(gpu, N_HEAD, HEAD_DIM, n, 1)?;
    let gathered = GatherScratch::new(gpu, SHAPE, N_KV, HEAD_DIM, 1)?;

    let mut rec = Recorder::new(gpu);
    let step = IndexStep { layer: &index, positions, span };
    select_blocks::record(&mut rec, &iq, step, &select_scratch, &selection, n)?;
    let select = rec.finish()?;
    let mut rec = Recorder::new(gpu);
    let step = KvStep { layer: &kv, positions, span, staging: None };
    let chosen = (&selection, SHAPE);
    sparse_attention::record(
        &mut rec,
        &q,
        None,
        step,
        chosen,
        (&scratch, &gathered),
        &out,
        n,
        0.0625,
    )?;
    let attend = rec.finish()?;
    // Pooled keys are read once for all queries; each query has tokens of its own to attend to.
    let of_type = |values: u32| KvType::F16.bytes(values.into()) as f64;
    let (blocks, chosen) = (f64::from(depth / SHAPE.ratio), f64::from(n * SHAPE.budget));
    let scoring = Work {
        bytes: Some(blocks * of_type(SHAPE.head_dim)),
        operations: 2.0 * blocks * f64::from(n * SHAPE.heads * SHAPE.head_dim),
    };
    let attending = Work {
        bytes: Some(2.0 * chosen * of_type(N_KV * HEAD_DIM)),
        operations: 4.0 * chosen * f64::from(N_HEAD * HEAD_DIM),
    };
    for (name, recording, work) in [("select", select, scoring), ("attend", attend, attending)] {
        bench.line(&format!("{name} n {n} at {depth}"), &recording, 1, work)?;
    }
    Ok(())
}
