//! What chooses the tokens that sparse attention reads (spec/architectures.md 4.5.4).

use super::{
    weights::Loader,
    workspace::{IndexerSpace, Step, Workspace},
};
use crate::{
    Error, Result,
    gpu::Recorder,
    kv::IndexStep,
    ops::{
        Matrix, Tensor, Tokens, index_write,
        product::{self, Epilogue},
        qk_rope::{self, Heads},
        rope::{HeadNorm, Rotation},
    },
};

/// Weights of one indexer.
#[derive(Debug)]
pub(super) struct Indexer {
    q: Matrix,
    k: Matrix,
    q_norm: Tensor,
    k_norm: Tensor,
}

/// Scratch that every workspace of a model with indexers has.
pub(super) fn space(ws: &Workspace) -> Result<&IndexerSpace> {
    ws.indexer.as_ref().ok_or_else(|| Error::Model("workspace without an indexer".into()))
}

impl Indexer {
    /// Loads that of block `il`.
    pub(super) fn load(loader: &mut Loader<'_>, il: u32) -> Result<Self> {
        let name = |part: &str| format!("blk.{il}.indexer.{part}.weight");
        Ok(Self {
            q: loader.matrix(&name("q_proj"))?,
            k: loader.matrix(&name("k_proj"))?,
            q_norm: loader.vector(&name("q_norm"))?,
            k_norm: loader.vector(&name("k_norm"))?,
        })
    }

    /// Keys as projected, to the workspace.
    pub(super) fn project_keys(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { ws, n, .. } = *step;
        product::record(rec, "indexer_k", &self.k, &ws.normed, &space(ws)?.k, n, Epilogue::Store)
    }

    /// Queries, normed and rotated, to the workspace.
    pub(super) fn project_queries(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let s = space(ws)?;
        product::record(rec, "indexer_q", &self.q, &ws.normed, &s.q_raw, n, Epilogue::Store)?;
        let norm = HeadNorm { gamma: &self.q_norm, eps: config.eps };
        let rotation = Rotation { table: &ws.inputs.rope, kind: config.rope.kind };
        let stride = self.k.n_out;
        let heads = Heads { count: self.q.n_out / stride, stride };
        qk_rope::record(rec, (&s.q_raw, heads), Some(norm), rotation, &s.q, n)
    }

    /// Keys from the workspace to the layer, and pooled keys of the blocks they complete.
    pub(super) fn write(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        keys: IndexStep<'_>,
        tokens: Tokens,
    ) -> Result<()> {
        let Step { config, ws, .. } = *step;
        let s = space(ws)?;
        let norm = HeadNorm { gamma: &self.k_norm, eps: config.eps };
        let rotation = Rotation { table: &s.block_rope, kind: config.rope.kind };
        index_write::record(rec, &s.k, norm, rotation, keys, tokens)
    }
}
