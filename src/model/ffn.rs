//! The feed-forward part: dense, or routed experts with or without a shared one
//! (spec/architectures.md 1.5).

use super::{
    config::Ffn,
    weights::Loader,
    workspace::{FfnSpace, MoeSpace, Step, Workspace},
};
use crate::{
    Error, Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, bias,
        experts::{self, Experts},
        gated_product::{self, GateUp},
        product::{self, Epilogue},
        routing,
    },
};

/// A gated feed-forward: `down(silu(gate x) * (up x))`.
#[derive(Debug)]
struct Gated {
    gate_up: GateUp,
    down: Matrix,
}

impl Gated {
    fn load(loader: &mut Loader<'_>, il: u32, suffix: &str) -> Result<Self> {
        let name = |part: &str| format!("blk.{il}.ffn_{part}{suffix}.weight");
        Ok(Self {
            gate_up: loader.gate_up(&name("gate"), &name("up"))?,
            down: loader.matrix(&name("down"))?,
        })
    }

    /// As the shared expert of routed ones: its output waits for its weight beside theirs.
    fn record(&self, rec: &mut Recorder, normed: &Tensor, space: &MoeSpace, n: u32) -> Result<()> {
        let (Some(hidden), Some(shared)) = (&space.shared_hidden, &space.routing.shared) else {
            return Err(Error::Model("workspace without a shared expert".into()));
        };
        gated_product::record(rec, "shexp_gate_up", &self.gate_up, normed, hidden, n)?;
        product::record(rec, "shexp_down", &self.down, hidden, &shared.out, n, Epilogue::Store)
    }
}

#[derive(Debug)]
enum Kind {
    Dense {
        ffn: Gated,
        down_bias: Option<Tensor>,
    },
    /// The gate of the shared expert is the router's last row.
    Moe {
        router: Matrix,
        experts: Experts,
        shared: Option<Gated>,
        n_used: u32,
        scale: f32,
    },
}

/// Weights of one feed-forward part.
#[derive(Debug)]
pub struct FeedForward(Kind);

impl FeedForward {
    /// Loads block `il`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn load(loader: &mut Loader<'_>, config: &Ffn, il: u32) -> Result<Self> {
        let name = |part: &str| format!("blk.{il}.{part}");
        Ok(Self(match config {
            Ffn::Dense { .. } => {
                for part in ["ffn_gate.bias", "ffn_up.bias"] {
                    if loader.has(&name(part)) {
                        return Err(Error::Model(format!(
                            "tensor {} is not supported",
                            name(part)
                        )));
                    }
                }
                let down_bias = loader.optional_vector(&name("ffn_down.bias"))?;
                Kind::Dense { ffn: Gated::load(loader, il, "")?, down_bias }
            }
            Ffn::Moe { n_used, n_ff_shared, weights_scale, .. } => {
                let merged = name("ffn_gate_up_exps.weight");
                let gate_up = if loader.has(&merged) {
                    loader.merged_gate_up(&merged)?
                } else {
                    loader.gate_up(&name("ffn_gate_exps.weight"), &name("ffn_up_exps.weight"))?
                };
                let down = loader.matrix(&name("ffn_down_exps.weight"))?;
                let router = name("ffn_gate_inp.weight");
                let (router, shared) = match n_ff_shared {
                    None => (loader.matrix(&router)?, None),
                    Some(_) => (
                        loader.stacked(&[&router, &name("ffn_gate_inp_shexp.weight")])?,
                        Some(Gated::load(loader, il, "_shexp")?),
                    ),
                };
                Kind::Moe {
                    router,
                    experts: Experts { gate_up, down },
                    shared,
                    n_used: *n_used,
                    scale: *weights_scale,
                }
            }
        }))
    }

    /// `residual += ffn(normed)`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { ws: Workspace { normed, residual: x, ffn: space, .. }, n, .. } = *step;
        match (&self.0, space) {
            (Kind::Dense { ffn, down_bias }, FfnSpace::Dense(hidden)) => {
                gated_product::record(rec, "ffn_gate_up", &ffn.gate_up, normed, hidden, n)?;
                product::record(rec, "ffn_down", &ffn.down, hidden, x, n, Epilogue::Add)?;
                match down_bias {
                    Some(b) => bias::record(rec, b, x, n),
                    None => Ok(()),
                }
            }
            (Kind::Moe { router, experts, shared, n_used, scale }, FfnSpace::Moe(s)) => {
                product::record(rec, "router", router, normed, &s.logits, n, Epilogue::Store)?;
                let k = *n_used;
                routing::record(rec, &s.logits, &s.routing, n, k, *scale)?;
                if let Some(shared) = shared {
                    shared.record(rec, normed, s, n)?;
                }
                experts::record(rec, experts, normed, &s.routing, &s.experts, x, n)
            }
            _ => Err(Error::Model("workspace of another model".into())),
        }
    }
}
