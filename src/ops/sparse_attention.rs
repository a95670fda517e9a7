//! Attention over selected blocks and the incomplete block at the end, gated as in
//! [`super::attention`], whose kernels it shares: equal to it while all blocks are selected
//! (spec/architectures.md 4.5.4).
//!
//! A step of one token gathers the rows of its list first, each once for all heads: a copy a
//! segment, then attention over the copy in one piece. A longer step has a list for each query;
//! there the kernels look up each key in it, with no mask and no copies. What a query reads
//! depends on the budget alone: a segment owns one contiguous part of the ascending list.

use super::{
    Tensor, Tokens,
    attention::{self, AttentionScratch, Gate},
    host_rows::{self, HostRows},
    top_blocks::Selection,
};
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    kv::{IndexShape, KvSegment, KvSpan, KvStep, KvType},
    shader::Variant,
};

/// Rows that a workgroup gathers of a segment, if all lie there.
const ROWS: u32 = 8;
/// Workgroups that fill a device.
const WORKGROUPS: u32 = 256;

/// Room for the keys and values that one query attends to; any number of layers and recordings
/// may share it, one after the other.
#[derive(Clone, Debug)]
pub struct GatherScratch {
    k: Buf,
    v: Buf,
    /// u32 `[row]`: the place of the last row of the query in that row of a step.
    last: Buf,
    tokens: u32,
    /// What queries have read of host memory.
    pub host_rows: HostRows,
}

impl GatherScratch {
    /// For layers of `n_kv` key-value heads of `head_dim` values of any type, and steps of one token
    /// of each of up to `sequences` sequences.
    ///
    /// # Errors
    /// [`Error::Device`] when they exceed a binding or memory is short.
    pub fn new(
        gpu: &dyn Memory,
        shape: IndexShape,
        n_kv: u32,
        head_dim: u32,
        sequences: u32,
    ) -> Result<Self> {
        let tokens = shape.budget + shape.ratio;
        let values = u64::from(tokens) * u64::from(n_kv) * u64::from(head_dim);
        let alloc = |label, bytes| gpu.alloc(label, bytes, MemoryKind::Scratch);
        Ok(Self {
            k: alloc("gathered keys", KvType::F32.bytes(values))?,
            v: alloc("gathered values", KvType::F32.bytes(values))?,
            last: alloc("gathered", u64::from(sequences) * 4)?,
            tokens,
            host_rows: HostRows::new(gpu)?,
        })
    }
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    query: u32,
    shift: u32,
    most: u32,
    segment_first: u32,
    segment_tokens: u32,
    k_values: u32,
    k_scales: u32,
    v_values: u32,
    v_scales: u32,
}

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
    (scratch, gathered): (&AttentionScratch, &GatherScratch),
    out: &Tensor,
    tokens: impl Into<Tokens>,
    scale: f32,
) -> Result<()> {
    let tokens = tokens.into();
    let n = tokens.end();
    if selection.rows < n || selection.most != shape.most() {
        return Err(Error::Shader(format!(
            "sparse_attention: a selection of {} blocks for {} queries, wanted {} for {n}",
            selection.most,
            selection.rows,
            shape.most()
        )));
    }
    host_rows::record(rec, step, (selection, shape), &gathered.host_rows, tokens)?;
    if tokens.n > 1 {
        let selected = Some((selection, shape));
        return attention::record_seen(rec, q, gate, step, selected, scratch, out, tokens, scale);
    }
    gather(rec, step, (selection, shape), gathered, tokens)?;
    let (k, v) = (gathered.k.clone(), gathered.v.clone());
    let layer = step.layer.over(KvSegment { k, v, first: 0, tokens: gathered.tokens });
    let span = KvSpan { from: 0, to: 1, pieces: None };
    let step = KvStep { layer: &layer, positions: &gathered.last, span, staging: None };
    attention::record(rec, q, gate, step, scratch, out, tokens, scale)
}

/// Copies the rows that the one query of `tokens` attends to.
fn gather(
    rec: &mut Recorder,
    step: KvStep<'_>,
    (selection, shape): (&Selection, IndexShape),
    gathered: &GatherScratch,
    tokens: Tokens,
) -> Result<()> {
    let layer = step.layer;
    let values = u64::from(layer.n_kv()) * u64::from(layer.head_dim());
    let needed = u64::from(shape.budget + shape.ratio) * KvType::F32.bytes(values);
    if gathered.k.size() < needed || gathered.v.size() < needed {
        return Err(Error::Shader(format!("sparse_attention: no room for {needed} bytes of rows")));
    }
    let groups = (shape.budget + shape.ratio).div_ceil(ROWS).min(WORKGROUPS);
    let parts = [layer.k_type().parts(values), layer.v_type().parts(values)].concat();
    // Cells of 16 bytes, or words where a part of a row is no whole number of them.
    let words = parts.iter().any(|bytes| bytes % 16 != 0);
    let cells = |bytes: u64| (bytes / if words { 4 } else { 16 }) as u32;
    let variant = Variant::new("sparse_gather").flag("words", words);
    for segment in step.segments("sparse_attention", tokens, 0..step.span.to)? {
        let params = Params {
            groups,
            query: tokens.first,
            shift: shape.ratio.ilog2(),
            most: shape.most(),
            segment_first: segment.first,
            segment_tokens: segment.tokens,
            k_values: cells(parts[0]),
            k_scales: cells(parts[1]),
            v_values: cells(parts[2]),
            v_scales: cells(parts[3]),
        };
        let bindings = [
            step.positions.into(),
            (&selection.blocks).into(),
            (&segment.k).into(),
            (&segment.v).into(),
            (&gathered.k).into(),
            (&gathered.v).into(),
            (&gathered.last).into(),
        ];
        let grid = Grid::Flat(groups.into());
        rec.dispatch("sparse_gather", &variant, &bindings, &params, grid)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
