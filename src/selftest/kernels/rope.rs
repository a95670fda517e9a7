//! Norm and rotation of queries at deep positions.

use super::KernelCheck;
use crate::{
    Result,
    model::rope::RopeKind,
    ops::{
        qk_rope::{self, Heads},
        reference::{Deviation, random, rope},
        rope::{HeadNorm, RopeTable, Rotation},
    },
    selftest::lab::Lab,
};

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![
        KernelCheck::new("rope of whole heads", |lab| turn(lab, RopeKind::Norm, (128, 128), false)),
        KernelCheck::new("norm and rope of a part", |lab| {
            turn(lab, RopeKind::Neox, (256, 64), true)
        }),
    ]
}

/// Heads of `d` values, of which `n_rot` rotate; each with a gate behind it if they are normed.
fn turn(
    lab: &Lab,
    kind: RopeKind,
    (d, n_rot): (usize, usize),
    normed: bool,
) -> Result<Vec<Deviation>> {
    const TOKENS: usize = 5;
    const HEADS: usize = 6;
    const FIRST: u32 = 262_141;
    let stride = if normed { 2 * d } else { d };
    let frequencies = rope::frequencies(n_rot, 1e7);
    let rope = RopeTable::new(frequencies.clone(), 1.0);
    let table = rope.tensor(&lab.gpu, TOKENS as u32)?;
    rope.write(&lab.gpu, FIRST, TOKENS as u32, &table)?;
    let (x, gamma) = (random(1, TOKENS * HEADS * stride), random(2, d));
    let (x_t, gamma_t) = (lab.upload(&x, HEADS * stride)?, lab.upload(&gamma, d)?);
    let y = lab.scratch(TOKENS, HEADS * d)?;
    lab.run(|rec| {
        let heads = Heads { count: HEADS as u32, stride: stride as u32 };
        let norm = normed.then_some(HeadNorm { gamma: &gamma_t, eps: 1e-6 });
        let rotation = Rotation { table: &table, kind };
        qk_rope::record(rec, (&x_t, heads), norm, rotation, &y, TOKENS as u32)
    })?;
    let norm = normed.then_some((gamma.as_slice(), 1e-6));
    let want = x.chunks(stride).enumerate().flat_map(|(i, head)| {
        rope::turn(&head[..d], norm, &frequencies, kind, FIRST + (i / HEADS) as u32)
    });
    Ok(vec![Deviation::of("y", lab.values(&y)?, want, 1e-5)])
}
