//! `qwen4exp`, Qwen3.8-Flash-Next (spec/architectures.md 4.5.1):
//!
//! ```text
//! X_c = token_embd[t]                for every stream c
//! for every layer:
//!     X += NGRAM(X, tokens)          in one of the layers
//!     (m, w) = HC(X); y = MIX(m)     MIX = gated delta net or sparse attention
//!     X_c += w_c y
//!     (m, w) = HC(X); y = FFN(m)     experts
//!     X_c += w_c y
//! logits = output * HC(X)
//! ```

mod config;
mod hyper;
mod ngram;

pub use config::{Indexer, Ngram, Qwen4ExpConfig};

use super::{
    ModelConfig, Observer, Part, Workspace, ffn::FeedForward, mixer::Mixer, weights::Loader,
    workspace::Step,
};
use crate::{
    Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, embed_rows,
        product::{self, Epilogue},
    },
};
use hyper::{Around, HyperConnection, StreamMix};
use ngram::NgramEmbedding;
use std::ops::Range;

#[derive(Debug)]
struct Layer {
    ngram: Option<NgramEmbedding>,
    around_mixer: HyperConnection,
    mixer: Mixer,
    around_ffn: HyperConnection,
    ffn: FeedForward,
}

/// A model's weights on the device; all but the n-gram table.
#[derive(Debug)]
pub struct Qwen4Exp {
    embedding: Matrix,
    layers: Vec<Layer>,
    output_mix: StreamMix,
    /// None: tied to the embedding.
    output: Option<Matrix>,
}

impl Qwen4Exp {
    /// Loads all tensors of a file that `config` describes.
    ///
    /// # Errors
    /// A tensor that is missing, of an unsupported type, or does not fit the device.
    pub fn load(
        loader: &mut Loader<'_>,
        config: &ModelConfig,
        extra: &Qwen4ExpConfig,
    ) -> Result<Self> {
        let streams = extra.streams;
        let embedding = loader.matrix("token_embd.weight")?;
        let mut layers = Vec::with_capacity(config.layers.len());
        for (il, kind) in (0..).zip(&config.layers) {
            let connect = |loader: &mut _, part, around| {
                HyperConnection::load(loader, &format!("blk.{il}.{part}"), streams, around)
            };
            let has_ngram = extra.ngram.as_ref().is_some_and(|ngram| ngram.layer == il);
            layers.push(Layer {
                ngram: has_ngram.then(|| NgramEmbedding::load(loader, il)).transpose()?,
                around_mixer: connect(loader, "hc_attn", Around::Mixer)?,
                mixer: Mixer::load(loader, *kind, il)?,
                around_ffn: connect(loader, "hc_ffn", Around::Ffn)?,
                ffn: FeedForward::load(loader, &config.ffn, il)?,
            });
        }
        let output_mix = StreamMix::load(loader, "output_hc", streams)?;
        Ok(Self { embedding, layers, output_mix, output: loader.optional_matrix("output.weight")? })
    }

    /// Records the layers `piece` of a step, the embedding before the first; the normed streams
    /// for [`Self::record_head`] end in `ws.streams`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        piece: Range<usize>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        let Step { ws, n, .. } = *step;
        let mut observe = |rec: &mut Recorder, il, part| {
            if let Some(o) = observer.as_deref_mut() {
                o.after(rec, il, part, ws, n);
            }
        };
        if piece.start == 0 {
            embed_rows::record(rec, &self.embedding, &ws.inputs.tokens, &ws.x, n)?;
        }
        let layers = self.layers.iter().enumerate();
        for (il, layer) in layers.take(piece.end).skip(piece.start) {
            if let Some(ngram) = &layer.ngram {
                ngram.record(rec, step)?;
                observe(rec, il, Part::Ngram);
            }
            // Elsewhere this has come with the injection before.
            if il == piece.start || layer.ngram.is_some() {
                layer.around_mixer.begin(rec, step)?;
            }
            layer.around_mixer.read(rec, step)?;
            if il + 1 == self.layers.len() && !step.read {
                return layer.mixer.advance(rec, step, il);
            }
            layer.mixer.record(rec, step, il)?;
            layer.around_mixer.write(rec, step, &layer.around_ffn)?;
            observe(rec, il, Part::Mixer);
            layer.around_ffn.read(rec, step)?;
            layer.ffn.record(rec, step)?;
            match self.layers.get(il + 1) {
                Some(next) => layer.around_ffn.write(rec, step, &next.around_mixer)?,
                None => layer.around_ffn.write_last(rec, step, &self.output_mix)?,
            }
            observe(rec, il, Part::Ffn);
        }
        Ok(())
    }

    /// What mixes tokens, by layer.
    pub(in crate::model) fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().map(|layer| &layer.mixer)
    }

    /// Records `logits = output * HC(X)` for the first `n` rows of `normed`, the normed streams.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record_head(
        &self,
        rec: &mut Recorder,
        ws: &Workspace,
        normed: &Tensor,
        logits: &Tensor,
        n: u32,
    ) -> Result<()> {
        self.output_mix.record(rec, ws, normed, n)?;
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        product::record(rec, "output", output, &ws.normed, logits, n, Epilogue::Store)
    }
}
