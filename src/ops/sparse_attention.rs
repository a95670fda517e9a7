//! Attention over selected blocks and the incomplete block at the end, gated as in
//! [`super::attention`], whose kernels it shares: equal to it while all blocks are selected
//! (spec/architectures.md 4.5.4).
//!
//! The kernels look up each key in the query's selection: no mask and no copies, whatever the
//! context. What a query reads depends on the budget alone: a segment is one contiguous part of
//! the ascending list, and workgroups for segments without any of it end at once.

use super::{
    Tensor,
    attention::{self, AttentionScratch, Gate},
    top_blocks::Selection,
};
use crate::{
    Error, Result,
    gpu::Recorder,
    kv::{IndexShape, KvStep},
};

/// [`attention::record`] of each query over the blocks that `selection` names for it and the
/// tokens past the last complete block.
///
/// # Errors
/// Shapes that do not fit.
#[allow(clippy::too_many_arguments)] // Each is an operand of the formula.
pub fn record(
    rec: &mut Recorder,
    q: &Tensor,
    gate: Option<Gate<'_>>,
    step: KvStep<'_>,
    (selection, shape): (&Selection, IndexShape),
    scratch: &AttentionScratch,
    out: &Tensor,
    n: u32,
    scale: f32,
) -> Result<()> {
    if selection.rows < n || selection.most != shape.most() {
        return Err(Error::Shader(format!(
            "sparse_attention: a selection of {} blocks for {} queries, wanted {} for {n}",
            selection.most,
            selection.rows,
            shape.most()
        )));
    }
    let selected = Some((selection, shape));
    attention::record_seen(rec, q, gate, step, selected, scratch, out, n, scale)
}

#[cfg(test)]
mod tests;
