//! The forward pass of whichever architecture a file has.

use super::{
    Decoder, ModelConfig, Observer, Qwen4Exp, Workspace, mixer::Mixer, weights::Loader,
    workspace::Step,
};
use crate::{Result, gpu::Recorder, ops::Tensor};
use std::ops::Range;

/// A model's weights on the device.
#[derive(Debug)]
pub enum Model {
    /// One residual stream, norms before blocks.
    Decoder(Decoder),
    /// Several streams, hyper-connections around blocks.
    Qwen4Exp(Box<Qwen4Exp>),
}

impl Model {
    /// Loads all tensors of a file that `config` describes.
    ///
    /// # Errors
    /// A tensor that is missing, of an unsupported type, or does not fit the device.
    pub fn load(loader: &mut Loader<'_>, config: &ModelConfig) -> Result<Self> {
        Ok(match &config.qwen4exp {
            None => Self::Decoder(Decoder::load(loader, config)?),
            Some(extra) => Self::Qwen4Exp(Box::new(Qwen4Exp::load(loader, config, extra)?)),
        })
    }

    /// The layers in the pieces that a step is submitted in, so that the device works on the first
    /// while the host still reads what the last one needs, `ws.ngram.rows`.
    pub fn pieces(&self, config: &ModelConfig) -> Vec<Range<usize>> {
        let n_layer = config.layers.len();
        let cut = config.ngram().map_or(0, |ngram| ngram.layer as usize);
        [0..cut, cut..n_layer].into_iter().filter(|piece| !piece.is_empty()).collect()
    }

    /// Records a piece of a step.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        piece: Range<usize>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        match self {
            // Always in one piece.
            Self::Decoder(model) => model.record(rec, step, observer),
            Self::Qwen4Exp(model) => model.record(rec, step, piece, observer),
        }
    }

    /// Records that the keys, values and index keys in the workspace go to every attention layer's
    /// cache, whatever they are.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record_writes(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let mixers: &mut dyn Iterator<Item = &Mixer> = match self {
            Self::Decoder(model) => &mut model.mixers(),
            Self::Qwen4Exp(model) => &mut model.mixers(),
        };
        mixers.enumerate().try_for_each(|(il, mixer)| mixer.write(rec, step, il))
    }

    /// What a step leaves for the head, a row a token.
    pub fn hidden<'a>(&self, ws: &'a Workspace) -> &'a Tensor {
        match (self, &ws.streams) {
            (Self::Qwen4Exp(_), Some(streams)) => &streams.normed,
            _ => &ws.x,
        }
    }

    /// Records the logits of the first `n` rows of `hidden`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record_head(
        &self,
        rec: &mut Recorder,
        config: &ModelConfig,
        ws: &Workspace,
        hidden: &Tensor,
        logits: &Tensor,
        n: u32,
    ) -> Result<()> {
        match self {
            Self::Decoder(model) => model.record_head(rec, config, ws, hidden, logits, n),
            Self::Qwen4Exp(model) => model.record_head(rec, ws, hidden, logits, n),
        }
    }
}
