//! A step's index keys: every token's raw key, and the pooled key of every block that the step
//! completes (spec/architectures.md 4.5.4).

use super::{
    Tensor, Tokens, reduction_width,
    rope::{HeadNorm, Rotation},
};
use crate::{
    Result,
    gpu::{Grid, Recorder},
    kv::IndexStep,
    model::rope::RopeKind,
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    row: u32,
    n: u32,
    ratio: u32,
    n_rot: u32,
    segment_first: u32,
    segment_tokens: u32,
    pooled_first: u32,
    eps: f32,
}

/// Stores the rows of `tokens` in `keys` (`[step's n][head_dim]`, the output of `indexer.k_proj`) at
/// their positions, and pooled keys after norm and rotation. `blocks` has from row `tokens.first` on
/// a row for each of the [`crate::kv::IndexShape::touched`] blocks from that of the first token on,
/// for the position of the block's first token ([`super::rope::RopeTable::rows`]). One dispatch a
/// segment that the step may write to.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    keys: &Tensor,
    norm: HeadNorm<'_>,
    blocks: Rotation<'_>,
    step: IndexStep<'_>,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    let tokens = tokens.into();
    let Tokens { first: row, n } = tokens;
    let (shape, element) = (step.layer.shape(), step.layer.element());
    keys.expect("index_write", "keys", tokens.end(), shape.head_dim)?;
    norm.gamma.expect("index_write", "gamma", 1, shape.head_dim)?;
    let groups = shape.touched(n);
    let n_rot = blocks.check("index_write", row + groups, shape.head_dim)?;
    let caps = rec.gpu().caps();
    let variant = Variant::new("index_write")
        .choose("T", element.name())
        .flag("neox", blocks.kind == RopeKind::Neox)
        .flag("norm", true)
        .flag("subgroup", caps.subgroup)
        .number("D", shape.head_dim)
        .number("WG", reduction_width(shape.head_dim / 8, caps));
    for segment in step.segments("index_write", tokens, step.span.from..step.span.to)? {
        let pooled = step.layer.pooled_of(segment)?;
        let params = Params {
            groups,
            row,
            n,
            ratio: shape.ratio,
            n_rot,
            segment_first: segment.first,
            segment_tokens: segment.tokens,
            pooled_first: pooled.first,
            eps: norm.eps,
        };
        let bindings = [
            (&keys.buf).into(),
            (&norm.gamma.buf).into(),
            (&blocks.table.buf).into(),
            step.positions.into(),
            (&segment.raw).into(),
            (&pooled.keys).into(),
        ];
        let grid = Grid::Flat(u64::from(groups));
        rec.dispatch("index_write", &variant, &bindings, &params, grid)?;
    }
    Ok(())
}
