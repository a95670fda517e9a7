//! Where tokens come in and go out: rows of an embedding table, and the largest logit.

use super::KernelCheck;
use crate::{
    Result,
    ops::{
        embed_rows,
        reference::{Deviation, random},
        top_logits,
    },
    quant::BlockType,
    selftest::lab::Lab,
};

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![KernelCheck::new("embedding rows", embed), KernelCheck::new("largest logit", largest)]
}

/// Rows of tables of every format.
fn embed(lab: &Lab) -> Result<Vec<Deviation>> {
    const WIDTH: usize = 512;
    const IDS: [u32; 4] = [10, 0, 7, 3];
    let check = |ty: BlockType| {
        let (table, values) = lab.weights(ty, [11, WIDTH])?;
        let (ids, y) = (lab.upload_words(&IDS)?, lab.scratch(IDS.len(), WIDTH)?);
        lab.run(|rec| embed_rows::record(rec, &table, &ids, &y, IDS.len() as u32))?;
        let want = IDS.iter().flat_map(|id| &values[*id as usize * WIDTH..][..WIDTH]).copied();
        Ok(Deviation::of(format!("row of {ty}"), lab.values(&y)?, want, 1e-6))
    };
    BlockType::ALL.iter().copied().filter(|ty| ty.runs_on_gpu()).map(check).collect()
}

/// Of the longest vocabulary, with an equal one behind it.
fn largest(lab: &Lab) -> Result<Vec<Deviation>> {
    const VOCAB: usize = 248_320;
    const BEST: usize = 200_001;
    let mut logits = random(1, VOCAB);
    (logits[BEST], logits[VOCAB - 1]) = (1.5, 1.5);
    let logits = lab.upload(&logits, VOCAB)?;
    let choice = top_logits::buffer(&lab.gpu)?;
    lab.run(|rec| top_logits::record(rec, &logits, &choice))?;
    // The index, and that no logit is unusable.
    Ok(vec![Deviation::of("choice", lab.words(&choice, 2)?, [BEST as u32, 0], 0.0)])
}
