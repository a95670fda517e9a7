//! Speed of the gated delta rule at the heads of Qwen3.5-35B-A3B (16 key and 32 value heads of
//! 128), by bytes of the state, read and written once, and operations of the step by step form.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench gated_delta
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.)

mod timing;

use engine::{
    Result,
    gpu::{MemoryKind, Recorder, Restrictions},
    ops::{
        Tensor,
        gated_delta::{self, GatedDelta, GatedDeltaScratch, HeadMap, Inputs},
    },
};
use timing::{Bench, Work};

const SHAPE: GatedDelta =
    GatedDelta { key_heads: 16, value_heads: 32, head_dim: 128, map: HeadMap::Tiled };

fn main() -> Result<()> {
    let bench = Bench::open(Restrictions::default())?;
    for n in [1, 2, 8, 16] {
        measure(&bench, &format!("steps n {n}"), n, n)?;
    }
    for n in [64, 512, 2048] {
        for (form, max_n) in [("steps", 1), ("chunks", n)] {
            measure(&bench, &format!("{form} n {n}"), n, max_n)?;
        }
    }
    Ok(())
}

/// Prints the line of `n` tokens. Scratch for few tokens holds no chunk, so all go token by token then.
fn measure(bench: &Bench, name: &str, n: u32, max_n: u32) -> Result<()> {
    let gpu = &bench.gpu;
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
    // A state times k, an outer product added, a state times q.
    let values = f64::from(v * d * d);
    let work = Work { bytes: Some(8.0 * values), operations: 6.0 * values * f64::from(n) };
    bench.line(name, &rec.finish()?, 1, work)
}
