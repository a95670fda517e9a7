//! Gated delta net: both forms of the recurrence, and causal convolutions.

use super::KernelCheck;
use crate::{
    Result,
    ops::{
        causal_conv,
        gated_delta::{self, GatedDelta, GatedDeltaScratch, HeadMap, Inputs},
        reference::{
            Deviation,
            causal_conv::{Kernel, convolve},
            gated_delta::Case,
            random,
        },
    },
    selftest::lab::Lab,
};

const SHAPE: GatedDelta =
    GatedDelta { key_heads: 2, value_heads: 6, head_dim: 128, map: HeadMap::Tiled };
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![
        KernelCheck::new("gated delta net, steps", |lab| recurrence(lab, 3)),
        KernelCheck::new("gated delta net, chunks", |lab| recurrence(lab, 130)),
        KernelCheck::new("causal convolution", |lab| convolution(lab, (4, 1))),
        KernelCheck::new("dilated convolution", |lab| convolution(lab, (4, 3))),
    ]
}

fn recurrence(lab: &Lab, n: usize) -> Result<Vec<Deviation>> {
    let case = Case::new(SHAPE, n, 0.2);
    let (heads, d) = (SHAPE.value_heads as usize, SHAPE.head_dim as usize);
    let u = lab.upload(&case.u, case.u.len() / n)?;
    let gates = lab.upload(&case.gates(), 2 * heads)?;
    let (dt_bias, ssm_a) = (lab.upload(&case.dt_bias, heads)?, lab.upload(&case.ssm_a, heads)?);
    let (state, o) = (lab.upload(&case.state, d)?, lab.scratch(n, heads * d)?);
    let scratch = GatedDeltaScratch::new(&lab.gpu, &SHAPE, n as u32)?;
    lab.run(|rec| {
        let inputs = Inputs { u: &u, gates: &gates, dt_bias: &dt_bias, ssm_a: &ssm_a };
        gated_delta::record(rec, &SHAPE, &inputs, &state, &scratch, &o, n as u32)
    })?;
    let (want, want_state) = case.reference();
    let limit = lab.delta_limit(n);
    Ok(vec![
        Deviation::of("o", lab.values(&o)?, want, limit),
        Deviation::of("state", lab.values(&state)?, want_state, limit),
    ])
}

/// One token, then many, with the tail that is left.
fn convolution(lab: &Lab, (taps, dilation): Kernel) -> Result<Vec<Deviation>> {
    const CHANNELS: usize = 1003;
    let w = random(1, CHANNELS * taps);
    let w_t = lab.upload(&w, taps)?;
    let mut before = random(2, (taps - 1) * dilation * CHANNELS);
    let tail = lab.upload(&before, CHANNELS)?;
    let mut all = Vec::new();
    for n in [1_usize, 70] {
        let x = random(n as u64 + 2, n * CHANNELS);
        let (x_t, u) = (lab.upload(&x, CHANNELS)?, lab.upload(&vec![0.0; x.len()], CHANNELS)?);
        lab.run(|rec| match dilation {
            1 => causal_conv::record(rec, &x_t, &w_t, &tail, &u, n as u32),
            _ => causal_conv::record_add(rec, &x_t, &w_t, dilation as u32, &tail, &u, n as u32),
        })?;
        let (want, left) = convolve(&x, &w, &before, CHANNELS, (taps, dilation));
        all.push(Deviation::of(format!("u of {n} tokens"), lab.values(&u)?, want, LIMIT));
        let found = lab.values(&tail)?;
        all.push(Deviation::of("tail", found, left.iter().copied(), 0.0));
        before = left;
    }
    Ok(all)
}
