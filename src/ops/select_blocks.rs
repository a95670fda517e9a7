//! Which blocks each query of a step attends to: scores and choice, by groups of queries, so that
//! scratch is bounded whatever the chunk and the context (spec/architectures.md 4.5.4).

use super::{
    Tensor, Tokens, index_scores,
    top_blocks::{self, Selection, TopScratch},
};
use crate::{
    Result,
    gpu::{Buf, Memory, MemoryKind, Recorder},
    kv::{IndexShape, IndexStep},
};

/// Scores there is room for, where one query does not need more.
const SCORES: u32 = 1 << 22;

/// Scratch of block selection; any number of layers and recordings may share it, one after the
/// other.
#[derive(Clone, Debug)]
pub struct SelectScratch {
    /// u32 `[query][block]`.
    scores: Buf,
    top: TopScratch,
    /// Blocks a sequence can have.
    blocks: u32,
}

impl SelectScratch {
    /// For steps of up to `rows` tokens of sequences of up to `context` tokens.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the scores of one query exceed a binding or memory is short.
    pub fn new(gpu: &dyn Memory, shape: IndexShape, rows: u32, context: u32) -> Result<Self> {
        Self::with_scores(gpu, shape, rows, context, SCORES)
    }

    fn with_scores(
        gpu: &dyn Memory,
        shape: IndexShape,
        rows: u32,
        context: u32,
        scores: u32,
    ) -> Result<Self> {
        let blocks = context.div_ceil(shape.ratio).max(1);
        let bound = u32::try_from(gpu.caps().max_binding / 4).unwrap_or(u32::MAX).min(scores);
        let useful = u64::from(rows) * u64::from(blocks);
        let size = useful.min(u64::from(bound.max(blocks)));
        let scores = gpu.alloc("block scores", size * 4, MemoryKind::Scratch)?;
        let top = TopScratch::new(gpu, shape, rows, scores.size() / 4)?;
        Ok(Self { scores, top, blocks })
    }
}

/// Writes to `selection` the blocks that the queries of `tokens` attend to. `q` is
/// `[step's n][heads * head_dim]`, normed and rotated ([`super::qk_rope`]); the step's own keys are in
/// the layer already ([`super::index_write`]).
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    q: &Tensor,
    step: IndexStep<'_>,
    scratch: &SelectScratch,
    selection: &Selection,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    let tokens = tokens.into();
    let shape = step.layer.shape();
    let segments = step.segments("select_blocks", tokens, 0..step.span.to)?;
    let room = segments.last().map_or(0, |s| (s.first + s.tokens) / shape.ratio);
    let stride = room.min(scratch.blocks).max(1);
    let group = (scratch.scores.size() / 4 / u64::from(stride)).clamp(1, tokens.n.into()) as u32;
    for first in (tokens.first..tokens.end()).step_by(group as usize) {
        let queries = Tokens { first, n: group.min(tokens.end() - first) };
        let scores = (&scratch.scores, stride);
        index_scores::record(rec, q, step, queries, scores)?;
        let positions = step.positions;
        top_blocks::record(rec, scores, positions, shape, queries, &scratch.top, selection)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
