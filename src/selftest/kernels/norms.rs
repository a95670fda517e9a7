//! RMSNorm of rows, gated and not.

use super::KernelCheck;
use crate::{
    Result,
    ops::{
        gated_norm::{self, Activation},
        reference::{Deviation, norms, random},
        rms_norm,
    },
    selftest::lab::Lab,
};

const TOKENS: usize = 3;
const EPS: f64 = 1e-6;
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![KernelCheck::new("norm of rows", of_rows), KernelCheck::new("gated norm", gated)]
}

fn of_rows(lab: &Lab) -> Result<Vec<Deviation>> {
    const ROW: usize = 2560;
    let (x, gamma) = (random(1, TOKENS * ROW), random(2, ROW));
    let (x_t, gamma_t, y) =
        (lab.upload(&x, ROW)?, lab.upload(&gamma, ROW)?, lab.scratch(TOKENS, ROW)?);
    lab.run(|rec| rms_norm::record(rec, &x_t, &gamma_t, &y, TOKENS as u32, EPS as f32))?;
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
