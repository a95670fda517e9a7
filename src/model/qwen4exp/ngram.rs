//! The n-gram embedding (spec/architectures.md 4.5.3). The host hashes and reads the rows
//! ([`crate::ngram`]); they arrive in `ws.ngram.rows`.

use super::super::{
    weights::Loader,
    workspace::{Step, StreamSpace},
};
use super::hyper::streams;
use crate::{
    Error, Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, causal_conv,
        ple_gate::{self, PleNorms},
        product::{self, Epilogue},
    },
};

/// Weights of the layer that adds the embedding; the table stays in the file.
#[derive(Debug)]
pub(super) struct NgramEmbedding {
    key: Matrix,
    value: Matrix,
    norms: PleNorms,
    conv: Tensor,
}

impl NgramEmbedding {
    /// Loads block `il`.
    pub(super) fn load(loader: &mut Loader<'_>, il: u32) -> Result<Self> {
        let name = |part: &str| format!("blk.{il}.ple_{part}.weight");
        Ok(Self {
            key: loader.matrix(&name("key"))?,
            value: loader.matrix(&name("value"))?,
            norms: PleNorms {
                key: loader.vector(&name("norm_key"))?,
                query: loader.vector(&name("norm_query"))?,
                conv: loader.vector(&name("norm_conv"))?,
            },
            conv: loader.vector(&name("conv1d"))?,
        })
    }

    /// `X += u + y`, advancing the tail of every sequence's state.
    pub(super) fn record(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let lacks = |what| Error::Model(format!("{what} without an n-gram embedding"));
        let (Some(ngram), Some(s)) = (config.ngram(), &ws.ngram) else {
            return Err(lacks("workspace"));
        };
        // The streams' own scratch is free: they are normed again after this.
        let StreamSpace { gates: key, normed, .. } = streams(ws)?;
        product::record(rec, "ple_key", &self.key, &s.rows, key, n, Epilogue::Store)?;
        product::record(rec, "ple_value", &self.value, &s.rows, &s.value, n, Epilogue::Store)?;
        let x = &ws.x;
        ple_gate::record(rec, key, &s.value, &self.norms, x, normed, n, config.eps)?;
        step.shares.iter().try_for_each(|share| {
            let tail = share.state.ngram_tail.as_ref().ok_or_else(|| lacks("state"))?;
            causal_conv::record_add(rec, normed, &self.conv, ngram.size, tail, x, share.tokens)
        })
    }
}
