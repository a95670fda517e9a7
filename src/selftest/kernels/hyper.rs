//! Hyper-connections and the gate of the n-gram embedding.

use super::KernelCheck;
use crate::{
    Result,
    ops::{
        hyper_inject::{self, Injection, Streams, Weighing},
        hyper_mix,
        ple_gate::{self, PleNorms},
        reference::{Deviation, hyper, ple_gate::gates, random},
    },
    selftest::lab::Lab,
};

const TOKENS: usize = 3;
const STREAMS: usize = 4;
const WIDTH: usize = 2560;
const ROW: usize = STREAMS * WIDTH;
const EPS: f64 = 1e-6;
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![
        KernelCheck::new("hyper-connections mix", mix),
        KernelCheck::new("hyper-connections inject", inject),
        KernelCheck::new("n-gram gate", ngram_gate),
    ]
}

fn mix(lab: &Lab) -> Result<Vec<Deviation>> {
    let [normed, gates] = [1, 2].map(|seed| random(seed, TOKENS * ROW));
    let (normed_t, gates_t) = (lab.upload(&normed, ROW)?, lab.upload(&gates, ROW)?);
    let (m, y) = (lab.scratch(TOKENS, WIDTH)?, lab.scratch(TOKENS, WIDTH)?);
    lab.run(|rec| hyper_mix::record(rec, (&normed_t, &gates_t), &m, &y, TOKENS as u32))?;
    Ok(vec![
        Deviation::of("m", lab.values(&m)?, hyper::mix(&normed, &gates, STREAMS, WIDTH), LIMIT),
        Deviation::of("y", lab.values(&y)?, vec![0.0; TOKENS * WIDTH], 0.0),
    ])
}

fn inject(lab: &Lab) -> Result<Vec<Deviation>> {
    let (y, rows) = (random(2, TOKENS * WIDTH), random(5, STREAMS * ROW));
    let (x, gamma) = (random(3, TOKENS * ROW), random(4, ROW));
    // All but the first stream add nothing to the weights.
    let weights = random(1, TOKENS * STREAMS);
    let part = |w: &[f32]| [w, &[0.0; (STREAMS - 1) * STREAMS]].concat();
    let parts: Vec<f32> = weights.chunks(STREAMS).flat_map(part).collect();
    let (parts_t, y_t) = (lab.upload(&parts, STREAMS * STREAMS)?, lab.upload(&y, WIDTH)?);
    let (x_t, gamma_t) = (lab.upload(&x, ROW)?, lab.upload(&gamma, WIDTH)?);
    let rows_t = lab.upload(&rows, ROW)?;
    let (normed, next) = (lab.scratch(TOKENS, ROW)?, lab.scratch(TOKENS, STREAMS * STREAMS)?);
    let all = Streams { x: &x_t, gamma: &gamma_t, normed: &normed };
    let injection = Injection { parts: &parts_t, y: &y_t };
    let weighing = Weighing { rows: &rows_t, parts: &next };
    let (n, eps) = (TOKENS as u32, EPS as f32);
    lab.run(|rec| hyper_inject::record(rec, all, Some(injection), Some(weighing), n, eps))?;
    let (sums, norms) = hyper::inject(&weights, &y, &x, &gamma, WIDTH, EPS);
    let part = |(r, normed): (usize, &[f64])| {
        let row = |o| &rows[o * ROW + r % STREAMS * WIDTH..][..WIDTH];
        let dot = |row: &[f32]| row.iter().zip(normed).map(|(a, b)| f64::from(*a) * b).sum();
        (0..STREAMS).map(|o| dot(row(o))).collect::<Vec<f64>>()
    };
    let parts_want: Vec<f64> = norms.chunks(WIDTH).enumerate().flat_map(part).collect();
    Ok(vec![
        Deviation::of("x", lab.values(&x_t)?, sums, LIMIT),
        Deviation::of("normed", lab.values(&normed)?, norms, LIMIT),
        Deviation::of("weights", lab.values(&next)?, parts_want, LIMIT),
    ])
}

fn ngram_gate(lab: &Lab) -> Result<Vec<Deviation>> {
    let [k, x] = [1, 2].map(|seed| random(seed, TOKENS * ROW));
    let v = random(3, TOKENS * WIDTH);
    let gammas = [4, 5, 6].map(|seed| random(seed, ROW));
    let (k_t, v_t, x_t) = (lab.upload(&k, ROW)?, lab.upload(&v, WIDTH)?, lab.upload(&x, ROW)?);
    let [key, query, conv] = gammas.each_ref().map(|gamma| lab.upload(gamma, ROW));
    let norms = PleNorms { key: key?, query: query?, conv: conv? };
    let (normed, n) = (lab.scratch(TOKENS, ROW)?, TOKENS as u32);
    lab.run(|rec| ple_gate::record(rec, &k_t, &v_t, &norms, &x_t, &normed, n, EPS as f32))?;
    let gammas = gammas.each_ref().map(Vec::as_slice);
    let (sums, normed_want) = gates(&k, &v, &x, gammas, WIDTH, EPS);
    Ok(vec![
        Deviation::of("x", lab.values(&x_t)?, sums, LIMIT),
        Deviation::of("normed", lab.values(&normed)?, normed_want, LIMIT),
    ])
}
