//! The pre-norm decoder that `llama`, `qwen3`, `qwen3moe`, `qwen35` and `qwen35moe` share
//! (spec/architectures.md 4.1 to 4.3):
//!
//! ```text
//! x = token_embd[t]
//! for every layer:
//!     x += MIX(rms(x) * attn_norm)      MIX = gated delta net or attention
//!     x += FFN(rms(x) * ffn_norm)       dense, or experts
//! logits = output * (rms(x) * output_norm)
//! ```

use super::{
    ModelConfig, Observer, Part,
    ffn::FeedForward,
    mixer::Mixer,
    weights::Loader,
    workspace::{Step, Workspace},
};
use crate::{
    Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, embed_rows,
        product::{self, Epilogue},
        rms_norm,
    },
};

#[derive(Debug)]
struct Layer {
    mixer_norm: Tensor,
    mixer: Mixer,
    ffn_norm: Tensor,
    ffn: FeedForward,
}

/// A model's weights on the device.
#[derive(Debug)]
pub struct Decoder {
    embedding: Matrix,
    layers: Vec<Layer>,
    output_norm: Tensor,
    /// None: tied to the embedding.
    output: Option<Matrix>,
}

impl Decoder {
    /// Loads all tensors of a file that `config` describes.
    ///
    /// # Errors
    /// A tensor that is missing, of an unsupported type, or does not fit the device.
    pub fn load(loader: &mut Loader<'_>, config: &ModelConfig) -> Result<Self> {
        let embedding = loader.matrix("token_embd.weight")?;
        let mut layers = Vec::with_capacity(config.layers.len());
        for (il, kind) in (0..).zip(&config.layers) {
            let norm = |part: &str| format!("blk.{il}.{part}.weight");
            layers.push(Layer {
                mixer_norm: loader.vector(&norm("attn_norm"))?,
                mixer: Mixer::load(loader, *kind, il)?,
                ffn_norm: loader.vector(&norm(config.arch.ffn_norm()))?,
                ffn: FeedForward::load(loader, &config.ffn, il)?,
            });
        }
        let output = loader.optional_matrix("output.weight")?;
        Ok(Self { embedding, layers, output_norm: loader.vector("output_norm.weight")?, output })
    }

    /// Records all layers of a step; the residual stream ends in `ws.x`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let Workspace { inputs, x, normed, .. } = ws;
        let mut observe = |rec: &mut Recorder, il, part| {
            if let Some(o) = observer.as_deref_mut() {
                o.after(rec, il, part, ws, n);
            }
        };
        embed_rows::record(rec, &self.embedding, &inputs.tokens, x, n)?;
        for (il, layer) in self.layers.iter().enumerate() {
            rms_norm::record(rec, x, &layer.mixer_norm, normed, n, config.eps)?;
            if il + 1 == self.layers.len() && !step.read {
                return layer.mixer.advance(rec, step, il);
            }
            layer.mixer.record(rec, step, il)?;
            observe(rec, il, Part::Mixer);
            rms_norm::record(rec, x, &layer.ffn_norm, normed, n, config.eps)?;
            layer.ffn.record(rec, step)?;
            observe(rec, il, Part::Ffn);
        }
        Ok(())
    }

    /// What mixes tokens, by layer.
    pub(super) fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().map(|layer| &layer.mixer)
    }

    /// Records `logits = output * (rms(x) * output_norm)` for the first `n` rows of `x`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record_head(
        &self,
        rec: &mut Recorder,
        config: &ModelConfig,
        ws: &Workspace,
        x: &Tensor,
        logits: &Tensor,
        n: u32,
    ) -> Result<()> {
        rms_norm::record(rec, x, &self.output_norm, &ws.normed, n, config.eps)?;
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        product::record(rec, "output", output, &ws.normed, logits, n, Epilogue::Store)
    }
}
