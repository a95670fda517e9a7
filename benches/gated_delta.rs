//! Speed of the gated delta rule at the heads of Qwen3.5-35B-A3B (16 key and 32 value heads of
//! 128): state bytes a second of a decode step, tokens a second of prefill by either form.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench gated_delta
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.)

mod timing;

use engine::{
    Result,
    gpu::{DeviceOptions, Gpu, MemoryKind, Recorder},
    ops::{
        Tensor,
        gated_delta::{self, GatedDelta, GatedDeltaScratch, HeadMap, Inputs},
    },
};
use timing::{range, spread};

const SHAPE: GatedDelta =
    GatedDelta { key_heads: 16, value_heads: 32, head_dim: 128, map: HeadMap::Tiled };

fn main() -> Result<()> {
    let gpu = Gpu::open(&DeviceOptions::default())?;
    println!("{}, {}", gpu.adapter().name, gpu.adapter().driver);
    let state_bytes = f64::from(SHAPE.value_heads * SHAPE.head_dim * SHAPE.head_dim) * 4.0;
    for n in [1, 2, 8, 16] {
        let seconds = time(&gpu, n, n)?;
        let gb = seconds.map(|s| 2.0 * state_bytes / s / 1e9);
        println!("steps  n {n:5}: {}  {} GB/s of state", spread(seconds, 1e3, "ms"), range(gb));
    }
    for n in [64, 512, 2048] {
        for (form, max_n) in [("steps ", 1), ("chunks", n)] {
            let seconds = time(&gpu, n, max_n)?;
            let tokens = seconds.map(|s| f64::from(n) / s);
            println!("{form} n {n:5}: {}  {} tok/s", spread(seconds, 1e3, "ms"), range(tokens));
        }
    }
    Ok(())
}

/// Seconds of one run over `n` tokens, fastest, median and slowest of some. Scratch for few
/// tokens holds no chunk, so all go token by token then.
fn time(gpu: &Gpu, n: u32, max_n: u32) -> Result<[f64; 3]> {
    let (v, d) = (SHAPE.value_heads, SHAPE.head_dim);
    let filled = |label, rows: u32, width: u32| {
        let wave = |i: u32| (f64::from(i) * 0.7).sin() as f32;
        let values: Vec<f32> = (0..rows * width).map(wave).collect();
        Tensor::upload(gpu, label, &values, width, MemoryKind::Scratch)
    };
    let u = filled("u", n, (2 * SHAPE.key_heads + v) * d)?;
    let gates = filled("gates", n, 2 * v)?;
    let dt_bias = filled("dt_bias", 1, v)?;
    let ssm_a = Tensor::upload(gpu, "ssm_a", &vec![-0.1; v as usize], v, MemoryKind::Scratch)?;
    let (state, o) = (filled("state", v * d, d)?, Tensor::scratch(gpu, "o", n, v * d)?);
    let inputs = Inputs { u: &u, gates: &gates, dt_bias: &dt_bias, ssm_a: &ssm_a };
    let scratch = GatedDeltaScratch::new(gpu, &SHAPE, max_n)?;
    let mut rec = Recorder::new(gpu);
    gated_delta::record(&mut rec, &SHAPE, &inputs, &state, &scratch, &o, n)?;
    timing::seconds(gpu, &rec.finish()?, &o)
}
