//! What chooses the tokens that sparse attention reads (spec/architectures.md 4.5.4).

use super::{weights::Loader, workspace::Step};
use crate::{
    Error, Result,
    gpu::Recorder,
    kv::{IndexLayer, IndexStep, KvStep},
    ops::{
        Matrix, Tensor, index_write,
        product::{self, Epilogue},
        qk_rope,
        rms_norm::Heads,
        rope::{HeadNorm, Rotation},
        select_blocks,
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

    /// Adds the step's index keys to `layer`; what its queries choose is in the workspace's
    /// selection then.
    pub(super) fn record(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        layer: &IndexLayer,
        cache: KvStep<'_>,
    ) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let Some(s) = &ws.indexer else {
            return Err(Error::Model("workspace without an indexer".into()));
        };
        product::record(rec, "indexer_q", &self.q, &ws.normed, &s.q_raw, n, Epilogue::Store)?;
        product::record(rec, "indexer_k", &self.k, &ws.normed, &s.k, n, Epilogue::Store)?;
        let norm = |gamma| HeadNorm { gamma, eps: config.eps };
        let rotation = |table| Rotation { table, kind: config.rope.kind };
        let shape = layer.shape();
        let heads = Heads { count: shape.heads, stride: shape.head_dim };
        let (q, tokens) = ((&s.q_raw, heads), rotation(&ws.inputs.rope));
        qk_rope::record(rec, q, Some(norm(&self.q_norm)), tokens, &s.q, n)?;
        let KvStep { positions, span, .. } = cache;
        let keys = IndexStep { layer, positions, span };
        index_write::record(rec, &s.k, norm(&self.k_norm), rotation(&s.block_rope), keys, n)?;
        select_blocks::record(rec, &s.q, keys, &s.scratch, &s.selection, n)
    }
}
