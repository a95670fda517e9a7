//! Scores of blocks: `sum_h relu(q_h . pooled_b) / sqrt(head_dim)` (spec/architectures.md 4.5.4).

use super::{Tensor, Tokens};
use crate::{
    Error, Result,
    gpu::{Bind, Buf, Grid, Recorder},
    kv::IndexStep,
    shader::Variant,
};

/// Blocks a workgroup scores.
const BLOCKS: u32 = 256;
/// Queries a workgroup scores them for, where there are several.
const TOKENS: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    tiles: u32,
    first: u32,
    n: u32,
    ratio: u32,
    most: u32,
    first_block: u32,
    blocks: u32,
    stride: u32,
    scale: f32,
}

/// Scores of the complete blocks of the queries of `tokens`, as bits of f32, to
/// `scores`, u32 `[n][stride]`; `q` is `[step's n][heads * head_dim]`, normed and rotated. A query
/// that selects all its blocks gets none. One dispatch for pooled keys that lie together.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    q: &Tensor,
    step: IndexStep<'_>,
    tokens: Tokens,
    (scores, stride): (&Buf, u32),
) -> Result<()> {
    let (shape, Tokens { first, n }) = (step.layer.shape(), tokens);
    q.expect("index_scores", "q", tokens.end(), shape.heads * shape.head_dim)?;
    if scores.size() < u64::from(n) * u64::from(stride) * 4 {
        return Err(Error::Shader(format!("index_scores: no room for {n} x {stride} scores")));
    }
    let together = if n == 1 { 1 } else { TOKENS };
    let variant = Variant::new("index_scores")
        .choose("T", step.layer.element().name())
        .number("D", shape.head_dim)
        .number("TOKENS", together)
        .number("HEADS", shape.heads);
    // Of the segments that the step reads, whatever else there is room for.
    let segments = step.segments("index_scores", tokens, 0..step.span.to)?;
    let end = segments.last().map_or(0, |s| (s.first + s.tokens) / shape.ratio).min(stride);
    for pooled in step.layer.pooled() {
        let first_block = pooled.first / shape.ratio;
        let blocks = (pooled.tokens / shape.ratio).min(end.saturating_sub(first_block));
        if blocks == 0 {
            break;
        }
        let tiles = blocks.div_ceil(BLOCKS);
        let groups = tiles * n.div_ceil(together);
        let params = Params {
            groups,
            tiles,
            first,
            n,
            ratio: shape.ratio,
            most: shape.most(),
            first_block,
            blocks,
            stride,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
        };
        let keys = Bind::first(&pooled.keys, step.layer.pooled_bytes(blocks));
        let bindings = [(&q.buf).into(), keys, step.positions.into(), scores.into()];
        let grid = Grid::Flat(u64::from(groups));
        rec.dispatch("index_scores", &variant, &bindings, &params, grid)?;
    }
    Ok(())
}
