//! RMSNorm of rows and heads, gated and not.

use super::KernelCheck;
use crate::{
    Result,
    ops::{
        gated_norm::{self, Activation},
        reference::{Deviation, norms, random},
        rms_norm::{self, Heads},
    },
    selftest::lab::Lab,
};

const TOKENS: usize = 3;
const EPS: f64 = 1e-6;
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![
        KernelCheck::new("norm of rows", |lab| of_heads(lab, 1, 2560)),
        KernelCheck::new("norm of heads", |lab| of_heads(lab, 24, 256)),
        KernelCheck::new("gated norm", gated),
    ]
}

fn of_heads(lab: &Lab, heads: usize, width: usize) -> Result<Vec<Deviation>> {
    let row = heads * width;
    let (x, gamma) = (random(1, TOKENS * row), random(2, width));
    let (x_t, gamma_t, y) =
        (lab.upload(&x, row)?, lab.upload(&gamma, width)?, lab.scratch(TOKENS, row)?);
    let each = Heads { count: heads as u32, stride: width as u32 };
    let (from, to) = ((&x_t, each), (&y, each));
    lab.run(|rec| rms_norm::record_heads(rec, from, &gamma_t, to, TOKENS as u32, EPS as f32))?;
    Ok(vec![Deviation::of("y", lab.values(&y)?, norms::rms_norm(&x, &gamma, EPS), LIMIT)])
}

fn gated(lab: &Lab) -> Result<Vec<Deviation>> {
    const WIDTH: usize = 128;
    const ROW: usize = 32 * WIDTH;
    let (o, z, gamma) = (random(1, TOKENS * ROW), random(2, TOKENS * ROW), random(3, WIDTH));
    let (o_t, z_t, gamma_t) =
        (lab.upload(&o, ROW)?, lab.upload(&z, ROW)?, lab.upload(&gamma, WIDTH)?);
    let check = |act| {
        let (n, y) = (TOKENS as u32, lab.scratch(TOKENS, ROW)?);
        lab.run(|rec| gated_norm::record(rec, &o_t, &z_t, &gamma_t, &y, n, EPS as f32, act))?;
        let want = norms::gated_norm(&o, &z, &gamma, EPS, act);
        Ok(Deviation::of(format!("{act:?}"), lab.values(&y)?, want, LIMIT))
    };
    Ok(vec![check(Activation::Silu)?, check(Activation::Sigmoid)?])
}
