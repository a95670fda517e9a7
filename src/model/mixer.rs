//! What mixes tokens in a layer: attention or the gated delta net.

use super::{
    attention::Attention, config::LayerKind, gated_delta::GatedDeltaNet, state::LayerState,
    weights::Loader, workspace::Step,
};
use crate::{Error, Result, gpu::Recorder};

/// Weights of one block that mixes tokens.
#[derive(Debug)]
pub enum Mixer {
    /// Softmax attention, over all tokens or those an indexer chooses.
    Attention(Attention),
    /// Gated delta net.
    GatedDelta(GatedDeltaNet),
}

impl Mixer {
    /// Loads block `il`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn load(loader: &mut Loader<'_>, kind: LayerKind, il: u32) -> Result<Self> {
        Ok(match kind {
            LayerKind::Recurrent => Self::GatedDelta(GatedDeltaNet::load(loader, il)?),
            _ => Self::Attention(Attention::load(loader, kind, il)?),
        })
    }

    /// `residual += mixer(normed)`, advancing `state`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(&self, rec: &mut Recorder, step: &Step<'_>, state: &LayerState) -> Result<()> {
        match (self, state) {
            (Self::Attention(block), LayerState::Attention(state)) => {
                block.record(rec, step, state)
            }
            (Self::GatedDelta(block), LayerState::Recurrent(state)) => {
                block.record(rec, step, state)
            }
            _ => Err(Error::Model("a layer has another kind of state".into())),
        }
    }

    /// Only advances `state`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn advance(&self, rec: &mut Recorder, step: &Step<'_>, state: &LayerState) -> Result<()> {
        match (self, state) {
            (Self::Attention(block), LayerState::Attention(state)) => {
                block.advance(rec, step, state)
            }
            _ => self.record(rec, step, state),
        }
    }

    /// What [`Attention::write`] does, in attention layers.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn write(&self, rec: &mut Recorder, step: &Step<'_>, state: &LayerState) -> Result<()> {
        match (self, state) {
            (Self::Attention(block), LayerState::Attention(state)) => block.write(rec, step, state),
            _ => Ok(()),
        }
    }
}
