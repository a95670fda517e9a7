//! Causal softmax attention over a segmented cache, with grouped heads and an optional gate
//! (spec/architectures.md 1.3 steps 5 and 6).
//!
//! Each piece of the history (a segment, or part of one in steps of many tokens) is a dispatch
//! that goes on from the running softmax of the one before; within it the history is split over
//! workgroups where the queries alone would leave the device idle. A last dispatch merges the
//! splits. Pieces are cut alike wherever they lie, so results do not depend on placement.

use super::{Tensor, Tokens, kv_pages, kv_stage, reduction_width, top_blocks::Selection};
use crate::{
    Error, Result,
    gpu::{Bind, Caps, Grid, Matrices, Memory, Recorder},
    kv::{IndexShape, KvLayer, KvStep, KvType},
    shader::Variant,
};

/// Workgroups that fill a device.
const WORKGROUPS: u32 = 128;
/// Keys of a split, at least: a multiple of 64.
const LEAST: u32 = 128;
/// Queries of one dispatch, times splits.
const SLOTS: u32 = 512;

/// Running softmaxes of one attention call; any number of layers and recordings may share it, one
/// after the other.
#[derive(Clone, Debug)]
pub struct AttentionScratch {
    /// `[query][split][n_head]` pairs (largest score, sum of exponentials).
    state: Tensor,
    /// `[query][split][n_head][head_dim]` weighted sums of values.
    sums: Tensor,
    /// Softmaxes of one sequence of a step: how its history is split does not depend on who is
    /// beside it.
    share: u32,
}

impl AttentionScratch {
    /// Scratch for layers of up to `n_head` query heads of `head_dim` values and steps of
    /// `max_n` tokens of up to `sequences` sequences: of a step of few tokens every split has a
    /// softmax.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn new(
        gpu: &dyn Memory,
        n_head: u32,
        head_dim: u32,
        max_n: u32,
        sequences: u32,
    ) -> Result<Self> {
        let row = u64::from(n_head) * u64::from(head_dim) * 4;
        let fit = u32::try_from(gpu.caps().max_binding / row.max(1)).unwrap_or(u32::MAX);
        let slots = max_n.max(WORKGROUPS * sequences).min(fit).max(1);
        Ok(Self {
            state: Tensor::scratch(gpu, "attention state", slots, 2 * n_head)?,
            sums: Tensor::scratch(gpu, "attention sums", slots, n_head * head_dim)?,
            share: (slots / sequences.max(1)).max(1),
        })
    }

    fn expect(&self, slots: u32, n_head: u32, head_dim: u32) -> Result<()> {
        let Self { state, sums, .. } = self;
        state.expect("attention", "scratch", slots, state.width.max(2 * n_head))?;
        sums.expect("attention", "scratch", slots, sums.width.max(n_head * head_dim))
    }
}

/// A gate inside the rows of a tensor: head h of token t starts at `first + h * stride` of row t.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// Rows of all tokens, e.g. the output of `attn_q`.
    pub tensor: &'a Tensor,
    /// Values before the first head's gate.
    pub first: u32,
    /// Values from one head's gate to the next.
    pub stride: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    n: u32,
    first: u32,
    n_head: u32,
    n_kv: u32,
    heads: u32,
    blocks: u32,
    splits: u32,
    least: u32,
    piece_first: u32,
    piece_tokens: u32,
    base: u32,
    carry: u32,
    scale: f32,
    one: u32,
    // The rest is for selected blocks only.
    shift: u32,
    most: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct MergeParams {
    first: u32,
    rows: u32,
    n_head: u32,
    head_dim: u32,
    splits: u32,
    gate_token: u32,
    gate_head: u32,
    gate_first: u32,
}

/// How a call is cut into workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    shader: &'static str,
    /// Queries a workgroup.
    tokens: u32,
    /// Query heads a workgroup, all of one group.
    heads: u32,
    /// Workgroups for the query heads of a group.
    blocks: u32,
    /// Queries a dispatch.
    batch: u32,
    /// Workgroups for the history.
    splits: u32,
}

impl Plan {
    /// For `n` queries of `group` heads a kv head, which see at most `longest` keys of a piece,
    /// each its own ones if `apart`; there is room for `slots` running softmaxes.
    fn new(
        (n, apart): (u32, bool),
        n_kv: u32,
        group: u32,
        head_dim: u32,
        longest: u32,
        slots: u32,
    ) -> Self {
        // Rows (queries times heads) that the kernels' registers and workgroup memory hold.
        let few = (2048 / head_dim).min(8);
        let many = (16384 / head_dim).min(64);
        let (shader, most) = match apart || n * group.div_ceil(group.div_ceil(few)) <= few {
            true => ("attention_decode", few),
            false => ("attention_prefill", many),
        };
        let blocks = group.div_ceil(most);
        let heads = group.div_ceil(blocks);
        // A power of two where it can be less than the most, so that chunks of odd lengths do not
        // each compile a kernel.
        let tokens = if apart { 1 } else { (most / heads).min(n.next_power_of_two()) };
        let batch = n.min(SLOTS);
        let grid = batch.div_ceil(tokens) * n_kv * blocks;
        let splits =
            (WORKGROUPS / grid).min(slots.min(SLOTS) / batch).min(longest.div_ceil(LEAST)).max(1);
        Self { shader, tokens, heads, blocks, batch, splits }
    }

    /// The kernel; that of many rows by cooperative matrices where there are any and it can be.
    fn variant(&self, caps: &Caps, layer: &KvLayer) -> Variant {
        let many = self.shader == "attention_prefill";
        let matrices = caps.matrices.filter(|m| many && takes_matrices(m, layer));
        let variant = match matrices {
            None => Variant::new(self.shader),
            Some(Matrices { edge, lanes }) => {
                Variant::new("coop_attention").number("EDGE", edge).number("LANES", lanes)
            }
        };
        variant
            .choose("K", layer.k_type().name())
            .choose("V", layer.v_type().name())
            .number("D", layer.head_dim())
            .number("TOKENS", self.tokens)
            .number("HEADS", self.heads)
    }
}

/// `out[t][h] = softmax(scale * q[t][h] . K[0..=pos(t)]) . V * sigmoid(gate[t][h])` for the rows
/// of `tokens`; their own keys are in the cache already. `q` and `out` are
/// `[step's n][n_head * head_dim]`; the kv head of h is `h / (n_head / n_kv)`.
///
/// # Errors
/// Shapes that do not fit.
#[allow(clippy::too_many_arguments)] // Each is an operand of the formula.
pub fn record(
    rec: &mut Recorder,
    q: &Tensor,
    gate: Option<Gate<'_>>,
    step: KvStep<'_>,
    scratch: &AttentionScratch,
    out: &Tensor,
    tokens: impl Into<Tokens>,
    scale: f32,
) -> Result<()> {
    record_seen(rec, q, gate, step, None, scratch, out, tokens.into(), scale)
}

/// [`record`], of the whole history or of selected blocks ([`super::sparse_attention`]).
#[allow(clippy::too_many_arguments)] // Each is an operand of the formula.
pub(super) fn record_seen(
    rec: &mut Recorder,
    q: &Tensor,
    gate: Option<Gate<'_>>,
    step: KvStep<'_>,
    selected: Option<(&Selection, IndexShape)>,
    scratch: &AttentionScratch,
    out: &Tensor,
    tokens: Tokens,
    scale: f32,
) -> Result<()> {
    let (n, end) = (tokens.n, tokens.end());
    let (n_kv, head_dim) = (step.layer.n_kv(), step.layer.head_dim());
    let n_head = heads_of(q, step.layer)?;
    q.expect("attention", "q", end, n_head * head_dim)?;
    out.expect("attention", "out", end, n_head * head_dim)?;
    let pieces = step.pieces("attention", tokens)?;
    let most = selected.map_or(u32::MAX, |(_, shape)| shape.budget + shape.ratio);
    let longest = pieces.iter().map(|piece| piece.tokens.min(most)).max().unwrap_or(1);
    let queries = (n, selected.is_some());
    let plan = Plan::new(queries, n_kv, n_head / n_kv, head_dim, longest, scratch.share);
    scratch.expect(end * plan.splits, n_head, head_dim)?;
    let variant = plan.variant(rec.gpu().caps(), step.layer).flag("sparse", selected.is_some());
    if let Some(selected) = selected {
        kv_pages::record(rec, step, &pieces, selected, tokens)?;
    }
    for (i, piece) in pieces.iter().enumerate() {
        let (rows, base) = match step.staged(piece) {
            None => (piece.segment, piece.first - piece.segment.first),
            Some(staging) => {
                kv_stage::record(rec, step, piece, staging, selected.is_some(), tokens)?;
                (&staging.piece, 0)
            }
        };
        for first in (tokens.first..end).step_by(plan.batch as usize) {
            let batch = plan.batch.min(end - first);
            let groups = batch.div_ceil(plan.tokens) * n_kv * plan.blocks * plan.splits;
            let params = Params {
                groups,
                n: batch,
                first,
                n_head,
                n_kv,
                heads: n_head / n_kv,
                blocks: plan.blocks,
                splits: plan.splits,
                least: LEAST,
                piece_first: piece.first,
                piece_tokens: piece.tokens,
                base,
                carry: u32::from(i > 0),
                scale,
                one: 1,
                shift: selected.map_or(0, |(_, shape)| shape.ratio.ilog2()),
                most: selected.map_or(0, |(_, shape)| shape.most()),
            };
            let mut bindings = vec![
                (&q.buf).into(),
                (&rows.k).into(),
                (&rows.v).into(),
                step.positions.into(),
                (&scratch.state.buf).into(),
                (&scratch.sums.buf).into(),
            ];
            bindings.extend(selected.map(|(s, _)| Bind::from(&s.blocks)));
            let grid = Grid::Long(u64::from(groups), piece.tokens);
            rec.dispatch("attention", &variant, &bindings, &params, grid)?;
        }
    }
    merge(rec, scratch, gate, out, tokens, (n_head, head_dim), plan.splits)
}

/// Whether `coop_attention` does: its matrices fill a head's eights, keys and values fit f16 and a tile
/// of them workgroup memory.
fn takes_matrices(matrices: &Matrices, layer: &KvLayer) -> bool {
    let fits = |ty| matches!(ty, KvType::F16 | KvType::Q8_0 | KvType::Q4_0);
    let head = layer.head_dim();
    head.is_multiple_of(8 * matrices.edge)
        && head <= 256
        && fits(layer.k_type())
        && fits(layer.v_type())
}

fn heads_of(q: &Tensor, layer: &KvLayer) -> Result<u32> {
    let n_head = q.width / layer.head_dim();
    if n_head > 0 && n_head.is_multiple_of(layer.n_kv()) {
        return Ok(n_head);
    }
    Err(Error::Shader(format!(
        "attention: queries of {} values for {} key-value heads of {}",
        q.width,
        layer.n_kv(),
        layer.head_dim()
    )))
}

fn merge(
    rec: &mut Recorder,
    scratch: &AttentionScratch,
    gate: Option<Gate<'_>>,
    out: &Tensor,
    tokens: Tokens,
    (n_head, head_dim): (u32, u32),
    splits: u32,
) -> Result<()> {
    let mut bindings =
        vec![(&scratch.state.buf).into(), (&scratch.sums.buf).into(), (&out.buf).into()];
    let mut params = MergeParams {
        first: tokens.first * n_head,
        rows: tokens.end() * n_head,
        n_head,
        head_dim,
        splits,
        gate_token: 0,
        gate_head: 0,
        gate_first: 0,
    };
    if let Some(gate) = gate {
        let width = gate.tensor.width.max(gate.first + (n_head - 1) * gate.stride + head_dim);
        gate.tensor.expect("attention", "gate", tokens.end(), width)?;
        params.gate_token = gate.tensor.width;
        params.gate_head = gate.stride;
        params.gate_first = gate.first;
        bindings.push((&gate.tensor.buf).into());
    }
    let caps: &Caps = rec.gpu().caps();
    let variant = Variant::new("attention_merge")
        .flag("gate", gate.is_some())
        .number("WG", reduction_width(head_dim, caps));
    let grid = Grid::Flat(u64::from(tokens.n * n_head));
    rec.dispatch("attention_merge", &variant, &bindings, &params, grid)
}

#[cfg(test)]
mod tests;
