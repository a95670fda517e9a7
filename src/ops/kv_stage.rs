//! A piece of the history from host memory into staging, where attention reads it
//! (spec/kv-offload.md 5): every row crosses the bus once for all queries of the step. The step's
//! own rows come from the copy that [`super::kv_write`] has left on the device.

use super::Tokens;
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Recorder},
    kv::{KvStep, KvType, PAGE, Piece, Staging},
    shader::Variant,
};

/// Workgroups that copy pages.
const WORKGROUPS: u32 = 128;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    pages: u32,
    n: u32,
    piece_first: u32,
    row: u32,
    tile: u32,
}

/// Copies the rows of `piece` at positions up to the last of `tokens`, all of the step, to
/// `staging.piece`: those before the first of them from the segment, the others from
/// `staging.chunk`. With `sparse`, only pages that [`super::kv_pages`] has marked.
///
/// # Errors
/// Shapes that do not fit.
pub(super) fn record(
    rec: &mut Recorder,
    step: KvStep<'_>,
    piece: &Piece<'_>,
    staging: &Staging,
    sparse: bool,
    tokens: Tokens,
) -> Result<()> {
    let (layer, Tokens { first, n }) = (step.layer, tokens);
    let Staging { piece: to, chunk, .. } = staging;
    let whole = piece.first.is_multiple_of(PAGE) && piece.tokens.is_multiple_of(PAGE);
    if !whole || piece.tokens > to.tokens || first > 0 || n > chunk.tokens - PAGE + 1 {
        return Err(Error::Shader(format!(
            "kv_stage: {} tokens at {} and {tokens:?} of the step",
            piece.tokens, piece.first
        )));
    }
    let values = u64::from(layer.n_kv()) * u64::from(layer.head_dim());
    let segment = piece.segment;
    let mut side = |ty: KvType, [from, kept, out]: [&Buf; 3]| {
        let row_bytes = ty.bytes(values);
        let lacks = |buf: &Buf, tokens: u32| buf.size() < row_bytes * u64::from(tokens);
        if lacks(kept, chunk.tokens) || lacks(out, to.tokens) {
            return Err(Error::Shader(format!("kv_stage: staging is not for rows of {values}")));
        }
        let pages = piece.tokens / PAGE;
        let groups = pages.min(WORKGROUPS);
        let row = piece.first - segment.first;
        let tile = (u64::from(KvType::TILE) * row_bytes / 16) as u32;
        let params = Params { groups, pages, n, piece_first: piece.first, row, tile };
        let mut bindings = vec![
            step.positions.into(),
            from.into(),
            kept.into(),
            out.into(),
            staging.counter().into(),
        ];
        if sparse {
            bindings.push((&staging.pages).into());
        }
        let variant = Variant::new("kv_stage").flag("sparse", sparse);
        rec.dispatch("kv_stage", &variant, &bindings, &params, Grid::Flat(groups.into()))
    };
    side(layer.k_type(), [&segment.k, &chunk.k, &to.k])?;
    side(layer.v_type(), [&segment.v, &chunk.v, &to.v])
}

#[cfg(test)]
mod tests;
