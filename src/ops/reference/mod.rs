//! Every op in plain f64 over random inputs: what tests and the self-test compare devices with.

pub(crate) mod attention;
pub(crate) mod cached;
pub(crate) mod causal_conv;
mod deviation;
pub(crate) mod experts;
pub(crate) mod gated_delta;
pub(crate) mod hyper;
pub(crate) mod indexer;
pub(crate) mod norms;
pub(crate) mod ple_gate;
mod random;
pub(crate) mod rope;
pub(crate) mod routing;

pub(crate) use deviation::Deviation;
pub(crate) use random::{Stored, random, random_bytes};

/// `W x[t]` for every row of x; `w` has rows as wide as those of x, `width`.
pub(crate) fn multiply(w: &[f32], x: &[f32], width: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    x.chunks(width).flat_map(|x| w.chunks(width).map(move |row| dot(row, x))).collect()
}

/// `1 / (1 + e^-v)`
pub(crate) fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

/// `v / (1 + e^-v)`
pub(crate) fn silu(v: f64) -> f64 {
    v * sigmoid(v)
}

/// The same values in f64.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}
