//! What mixes tokens in a layer: attention or the gated delta net.

use super::{
    attention::Attention, config::LayerKind, gated_delta::GatedDeltaNet, weights::Loader,
    workspace::Step,
};
use crate::{Result, gpu::Recorder};

/// Weights of one block that mixes tokens.
#[derive(Debug)]
pub enum Mixer {
    /// Softmax attention, over all tokens or those an indexer chooses.
    Attention(Box<Attention>),
    /// Gated delta net.
    GatedDelta(Box<GatedDeltaNet>),
}

impl Mixer {
    /// Loads block `il`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn load(loader: &mut Loader<'_>, kind: LayerKind, il: u32) -> Result<Self> {
        Ok(match kind {
            LayerKind::Recurrent => Self::GatedDelta(Box::new(GatedDeltaNet::load(loader, il)?)),
            _ => Self::Attention(Box::new(Attention::load(loader, kind, il)?)),
        })
    }

    /// `residual += mixer(normed)`, advancing the state of layer `il` of every sequence.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        match self {
            Self::Attention(block) => block.record(rec, step, il),
            Self::GatedDelta(block) => block.record(rec, step, il),
        }
    }

    /// Only advances the state.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn advance(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        match self {
            Self::Attention(block) => block.advance(rec, step, il),
            Self::GatedDelta(block) => block.record(rec, step, il),
        }
    }

    /// What [`Attention::write`] does, in attention layers.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn write(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        match self {
            Self::Attention(block) => block.write(rec, step, il),
            Self::GatedDelta(_) => Ok(()),
        }
    }
}
