//! The gated delta net block (spec/architectures.md 1.4).

use super::{config::Gdn, weights::Loader, workspace::Step};
use crate::{
    Error, Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, causal_conv,
        gated_delta::{self, GatedDelta, HeadMap},
        gated_norm,
        product::{self, Epilogue},
    },
};

/// Weights of one gated delta net block.
#[derive(Debug)]
pub struct GatedDeltaNet {
    qkv: Matrix,
    gate: Matrix,
    /// alpha and beta.
    gates: Matrix,
    conv: Tensor,
    dt_bias: Tensor,
    a: Tensor,
    norm: Tensor,
    out: Matrix,
}

/// The op's view of the configuration: GGUF files of these architectures hold value heads tiled
/// over the key heads (spec 1.4.1).
pub(super) fn shape(g: &Gdn) -> GatedDelta {
    GatedDelta {
        key_heads: g.n_k_heads,
        value_heads: g.n_v_heads,
        head_dim: g.state_size,
        map: HeadMap::Tiled,
    }
}

impl GatedDeltaNet {
    /// Loads block `il`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn load(loader: &mut Loader<'_>, il: u32) -> Result<Self> {
        let name = |part: &str| format!("blk.{il}.{part}");
        Ok(Self {
            qkv: loader.matrix(&name("attn_qkv.weight"))?,
            gate: loader.matrix(&name("attn_gate.weight"))?,
            gates: loader.stacked(&[&name("ssm_alpha.weight"), &name("ssm_beta.weight")])?,
            conv: loader.vector(&name("ssm_conv1d.weight"))?,
            dt_bias: loader.vector(&name("ssm_dt.bias"))?,
            a: loader.vector(&name("ssm_a"))?,
            norm: loader.vector(&name("ssm_norm.weight"))?,
            out: loader.matrix(&name("ssm_out.weight"))?,
        })
    }

    /// `residual += gated_delta_net(normed)`, advancing the state of layer `il` of every sequence.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let (Some(g), Some(s)) = (&config.gdn, &ws.gated_delta) else {
            return Err(Error::Model("workspace without a gated delta net".into()));
        };
        let (normed, x) = (&ws.normed, &ws.residual);
        product::record(rec, "attn_qkv", &self.qkv, normed, &s.qkv, n, Epilogue::Store)?;
        product::record(rec, "attn_gate", &self.gate, normed, &s.z, n, Epilogue::Store)?;
        product::record(rec, "ssm_gates", &self.gates, normed, &s.gates, n, Epilogue::Store)?;
        let inputs = gated_delta::Inputs {
            u: &s.u,
            gates: &s.gates,
            dt_bias: &self.dt_bias,
            ssm_a: &self.a,
        };
        for share in step.shares {
            let (state, tokens) = (share.state.recurrent_of(il)?, share.tokens);
            causal_conv::record(rec, &s.qkv, &self.conv, &state.conv_tail, &s.u, tokens)?;
            gated_delta::record(rec, &shape(g), &inputs, &state.s, &s.chunk, &s.o, tokens)?;
        }
        let gate = config.arch.delta_gate();
        gated_norm::record(rec, &s.o, &s.z, &self.norm, &s.gated, n, config.eps, gate)?;
        product::record(rec, "ssm_out", &self.out, &s.gated, x, n, Epilogue::Add)
    }
}
