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
    attention::Attention,
    config::{LayerKind, ModelConfig},
    ffn::FeedForward,
    gated_delta::GatedDeltaNet,
    state::{LayerState, SequenceState},
    weights::Loader,
    workspace::{Step, Workspace},
};
use crate::{
    Error, Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, embed_rows,
        product::{self, Epilogue},
        rms_norm,
    },
};

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    GatedDelta(GatedDeltaNet),
}

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

/// The halves of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Attention or gated delta net.
    Mixer,
    /// Feed-forward.
    Ffn,
}

/// Sees the residual stream as it is recorded; for tests and fault finding.
pub trait Observer {
    /// At this place of the recording `x` holds `n` rows that layer `il` has updated by `part`.
    fn after(&mut self, rec: &mut Recorder, il: usize, part: Part, x: &Tensor, n: u32);
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
            let mixer = match kind {
                LayerKind::Attention => Mixer::Attention(Attention::load(loader, il)?),
                LayerKind::Recurrent => Mixer::GatedDelta(GatedDeltaNet::load(loader, il)?),
            };
            layers.push(Layer {
                mixer_norm: loader.vector(&norm("attn_norm"))?,
                mixer,
                ffn_norm: loader.vector(&norm(config.arch.ffn_norm()))?,
                ffn: FeedForward::load(loader, &config.ffn, il)?,
            });
        }
        let output =
            loader.has("output.weight").then(|| loader.matrix("output.weight")).transpose()?;
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
        state: &SequenceState,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        let Step { config, ws: Workspace { inputs, x, normed, .. }, n, .. } = *step;
        embed_rows::record(rec, &self.embedding, &inputs.tokens, x, n)?;
        for (il, (layer, state)) in self.layers.iter().zip(&state.layers).enumerate() {
            rms_norm::record(rec, x, &layer.mixer_norm, normed, n, config.eps)?;
            match (&layer.mixer, state) {
                (Mixer::Attention(block), LayerState::Attention(kv)) => {
                    block.record(rec, step, kv)?;
                }
                (Mixer::GatedDelta(block), LayerState::Recurrent(s)) => {
                    block.record(rec, step, s)?;
                }
                _ => return Err(Error::Model(format!("layer {il} has another kind of state"))),
            }
            if let Some(o) = observer.as_deref_mut() {
                o.after(rec, il, Part::Mixer, x, n);
            }
            rms_norm::record(rec, x, &layer.ffn_norm, normed, n, config.eps)?;
            layer.ffn.record(rec, step)?;
            if let Some(o) = observer.as_deref_mut() {
                o.after(rec, il, Part::Ffn, x, n);
            }
        }
        Ok(())
    }

    /// Records `logits = output * rms(x)` for the first `n` rows of `x`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record_head(
        &self,
        rec: &mut Recorder,
        config: &ModelConfig,
        (x, normed): (&Tensor, &Tensor),
        logits: &Tensor,
        n: u32,
    ) -> Result<()> {
        rms_norm::record(rec, x, &self.output_norm, normed, n, config.eps)?;
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        product::record(rec, "output", output, normed, logits, n, Epilogue::Store)
    }
}
