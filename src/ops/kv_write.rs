//! A step's keys and values into the cache: keys normed and rotated, both converted to the
//! cache's types (spec/architectures.md 1.3 steps 3 to 5).

use super::{
    Tensor, Tokens, reduction_width,
    rope::{HeadNorm, Rotation},
};
use crate::{
    Result,
    gpu::{Grid, Recorder},
    kv::KvStep,
    model::rope::RopeKind,
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    first: u32,
    rows: u32,
    n_kv: u32,
    head_dim: u32,
    n_rot: u32,
    segment_first: u32,
    segment_tokens: u32,
    eps: f32,
}

/// Writes the rows of `tokens` in `k` and `v` (`[step's n][n_kv * head_dim]`) to the places of their
/// positions, keys after the optional norm and the rotation. One dispatch a segment that the
/// step may write to, and one more where the step reads its own rows from staging.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    (k, v): (&Tensor, &Tensor),
    norm: Option<HeadNorm<'_>>,
    rotation: Rotation<'_>,
    step: KvStep<'_>,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    let tokens = tokens.into();
    let (n_kv, head_dim) = (step.layer.n_kv(), step.layer.head_dim());
    k.expect("kv_write", "k", tokens.end(), n_kv * head_dim)?;
    v.expect("kv_write", "v", tokens.end(), n_kv * head_dim)?;
    let n_rot = rotation.check("kv_write", tokens.end(), head_dim)?;
    // Each invocation holds eight values of a head.
    let all = (head_dim / 8).next_power_of_two();
    let width = reduction_width(head_dim, rec.gpu().caps()).min(64).max(all);
    let variant = Variant::new("kv_write")
        .choose("K", step.layer.k_type().name())
        .choose("V", step.layer.v_type().name())
        .flag("neox", rotation.kind == RopeKind::Neox)
        .flag("norm", norm.is_some())
        .flag("subgroup", norm.is_some() && rec.gpu().caps().subgroup)
        .number("WG", width);
    let (first, rows) = (tokens.first * n_kv, tokens.n * n_kv);
    let segments = step.segments("kv_write", tokens, step.span.from..step.span.to)?;
    let kept = step.kept(segments).map(|staging| (&staging.chunk, &staging.places));
    for (segment, places) in segments.iter().map(|s| (s, step.positions)).chain(kept) {
        let params = Params {
            first,
            rows: first + rows,
            n_kv,
            head_dim,
            n_rot,
            segment_first: segment.first,
            segment_tokens: segment.tokens,
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        let mut bindings = vec![
            (&k.buf).into(),
            (&v.buf).into(),
            (&rotation.table.buf).into(),
            places.into(),
            (&segment.k).into(),
            (&segment.v).into(),
        ];
        if let Some(norm) = norm {
            norm.gamma.expect("kv_write", "gamma", 1, head_dim)?;
            bindings.push((&norm.gamma.buf).into());
        }
        rec.dispatch("kv_write", &variant, &bindings, &params, Grid::Flat(u64::from(rows)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
