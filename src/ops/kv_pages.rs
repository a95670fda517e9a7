//! Which pages of the history any query of a step reads from, so that the others are not copied
//! ([`super::kv_stage`], spec/kv-offload.md 5).

use super::{Tokens, top_blocks::Selection};
use crate::{
    Error, Result,
    gpu::{Grid, Recorder},
    kv::{IndexShape, KvStep, PAGE, Piece},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    n: u32,
    shift: u32,
    most: u32,
}

/// Writes the bit of every page of `pieces` to the step's staging, from what the queries of
/// `tokens`, all of the step, have selected; nothing where no piece is copied.
///
/// # Errors
/// Shapes that do not fit.
pub(super) fn record(
    rec: &mut Recorder,
    step: KvStep<'_>,
    pieces: &[Piece<'_>],
    (selection, shape): (&Selection, IndexShape),
    tokens: Tokens,
) -> Result<()> {
    let Some(staging) = pieces.iter().find_map(|piece| step.staged(piece)) else { return Ok(()) };
    if shape.ratio > PAGE || tokens.first > 0 {
        let ratio = shape.ratio;
        return Err(Error::Shader(format!("kv_pages: {tokens:?}, blocks of {ratio} tokens")));
    }
    // Past the context there is room, but no position.
    let end = pieces.last().map_or(0, |piece| piece.first + (piece.tokens - 1));
    let words = u64::from(end / (32 * PAGE) + 1).min(staging.pages.size() / 4);
    let (shift, most) = (shape.ratio.ilog2(), shape.most());
    let params = Params { groups: words as u32, n: tokens.n, shift, most };
    let bindings = [step.positions.into(), (&selection.blocks).into(), (&staging.pages).into()];
    rec.dispatch("kv_pages", &Variant::new("kv_pages"), &bindings, &params, Grid::Flat(words))
}
