//! Gated delta rule, the recurrence of a linear attention layer (spec/architectures.md 1.4, steps
//! 3 to 6). Per value head, with a state S `[d_k][d_v]`:
//!
//! ```text
//! S ← e^g S;  δ = β (v − Sᵀk);  S ← S + k δᵀ;  o = Sᵀq
//! ```
//!
//! Two forms give the same result: `step` goes token by token with the state in registers, for
//! decoding, and `chunk` uses matrix products over 64 tokens at a time, for prefill.

mod chunk;
mod step;
#[cfg(test)]
mod tests;

pub use chunk::GatedDeltaScratch;

use super::{Tensor, Tokens};
use crate::{Error, Result, gpu::Recorder};

/// Which key head a value head uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// `h mod K`: qwen35, qwen35moe, qwen4exp (their value heads are reordered in the file).
    Tiled,
    /// `h div (V / K)`: qwen3next.
    Grouped,
}

/// Shape of a layer's recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDelta {
    /// K, heads of q and k.
    pub key_heads: u32,
    /// V, heads of v, of the state and of the output; a multiple of K.
    pub value_heads: u32,
    /// d_k = d_v: 16, 32, 64, 128 or 256.
    pub head_dim: u32,
    /// Which key head a value head uses.
    pub map: HeadMap,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[step's n][K·d_k | K·d_k | V·d_v]`: q, k and v after the convolution, not normed.
    pub u: &'a Tensor,
    /// `[step's n][V | V]`: α, the projection that the decay comes from, and the one that β comes from.
    pub gates: &'a Tensor,
    /// `[V]`: bias of α.
    pub dt_bias: &'a Tensor,
    /// `[V]`: −exp(A_log), as files hold it.
    pub ssm_a: &'a Tensor,
}

/// Up to so many tokens go one by one: half a chunk, which costs as much as a whole one.
const MAX_STEPS: u32 = 32;

/// Runs the recurrence over the rows of `tokens`: `o` `[step's n][V·d_v]`, `state` `[V·d_k][d_v]`
/// in and out (zeros for a new sequence). The chunked form is for steps of one sequence.
///
/// # Errors
/// Shapes that do not fit, or a head width without a kernel.
pub fn record(
    rec: &mut Recorder,
    shape: &GatedDelta,
    inputs: &Inputs<'_>,
    state: &Tensor,
    scratch: &GatedDeltaScratch,
    o: &Tensor,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    let tokens = tokens.into();
    if tokens.n <= MAX_STEPS || tokens.first > 0 || scratch.is_empty() {
        step::record(rec, shape, inputs, state, o, tokens)
    } else {
        chunk::record(rec, shape, inputs, state, scratch, o, tokens.n)
    }
}

impl GatedDelta {
    /// Values of q, k and v of one token.
    pub(super) fn conv_dim(&self) -> u32 {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    fn expect(&self, inputs: &Inputs<'_>, state: &Tensor, o: &Tensor, n: u32) -> Result<()> {
        let (k, v, d) = (self.key_heads, self.value_heads, self.head_dim);
        if ![16, 32, 64, 128, 256].contains(&d) {
            return Err(Error::Shader(format!(
                "gated_delta: heads of {d}, supported are 16, 32, 64, 128 and 256"
            )));
        }
        if k == 0 || !v.is_multiple_of(k) {
            return Err(Error::Shader(format!(
                "gated_delta: {v} value heads do not share {k} key heads evenly"
            )));
        }
        inputs.u.expect("gated_delta", "u", n, self.conv_dim())?;
        inputs.gates.expect("gated_delta", "gates", n, 2 * v)?;
        inputs.dt_bias.expect("gated_delta", "dt_bias", 1, v)?;
        inputs.ssm_a.expect("gated_delta", "ssm_a", 1, v)?;
        state.expect("gated_delta", "state", v * d, d)?;
        o.expect("gated_delta", "o", n, v * d)
    }

    /// For the shaders.
    fn heads(&self) -> Heads {
        let share = match self.map {
            HeadMap::Tiled => 1,
            HeadMap::Grouped => self.value_heads / self.key_heads,
        };
        let (key, value) = (self.key_heads, self.value_heads);
        Heads { key, value, share, quads: self.head_dim / 4 }
    }
}

/// `Heads` of `shared/delta_heads.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Heads {
    key: u32,
    value: u32,
    share: u32,
    quads: u32,
}
