//! Causal depthwise convolution (spec/architectures.md 1.4 step 2 and 4.5.3).

use super::silu;

/// Taps and the distance between them.
pub(crate) type Kernel = (usize, usize);

/// Output and new tail.
pub(crate) fn convolve(
    x: &[f32],
    w: &[f32],
    tail: &[f32],
    channels: usize,
    (taps, dilation): Kernel,
) -> (Vec<f64>, Vec<f32>) {
    let rows = [tail, x].concat();
    let at = |t: usize, ch: usize| f64::from(rows[t * channels + ch]);
    let out = (0..x.len() / channels)
        .flat_map(|t| (0..channels).map(move |ch| (t, ch)))
        .map(|(t, ch)| {
            let tap = |j: usize| f64::from(w[ch * taps + j]) * at(t + j * dilation, ch);
            silu((0..taps).map(tap).sum())
        })
        .collect();
    (out, rows[x.len()..].to_vec())
}
