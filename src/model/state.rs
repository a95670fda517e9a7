//! What a sequence remembers, layer by layer, on the device.

use super::config::{LayerKind, ModelConfig};
use crate::{
    Result,
    gpu::{Gpu, MemoryKind},
    kv::{KvLayer, KvSpan, KvType},
    ops::Tensor,
};

/// State of one gated delta net layer, f32, updated in place.
#[derive(Debug)]
pub struct RecurrentState {
    /// The last `conv_kernel - 1` raw inputs of the convolution, `[c - 1][conv_dim]`.
    pub conv_tail: Tensor,
    /// `[V][d_k][d_v]`.
    pub s: Tensor,
}

/// State of one layer.
#[derive(Debug)]
pub enum LayerState {
    /// Keys and values: the only part that grows.
    Attention(KvLayer),
    /// Fixed size.
    Recurrent(RecurrentState),
}

/// All layers' state of one sequence.
#[derive(Debug)]
pub struct SequenceState {
    /// One entry a layer.
    pub layers: Vec<LayerState>,
}

/// A copy of the recurrent part of a sequence at one position. Together with the keys and values
/// up to that position it is the whole state.
#[derive(Debug)]
pub struct Checkpoint {
    recurrent: Vec<RecurrentState>,
}

impl SequenceState {
    /// The state before the first token.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new(gpu: &Gpu, config: &ModelConfig, k: KvType, v: KvType) -> Result<Self> {
        let layer = |kind: &LayerKind| match (kind, &config.gdn) {
            (LayerKind::Recurrent, Some(g)) => {
                let state = RecurrentState {
                    conv_tail: state_tensor(gpu, g.conv_kernel - 1, g.conv_dim())?,
                    s: state_tensor(gpu, g.n_v_heads * g.state_size, g.state_size)?,
                };
                gpu.zero(&state.conv_tail.buf);
                gpu.zero(&state.s.buf);
                Ok(LayerState::Recurrent(state))
            }
            _ => {
                let kv = KvLayer::new(gpu, config.n_kv, config.head_dim, k, v)?;
                Ok(LayerState::Attention(kv))
            }
        };
        Ok(Self { layers: config.layers.iter().map(layer).collect::<Result<_>>()? })
    }

    /// Makes room for `n` more tokens from position `first` on, of at most `context`, and returns
    /// the KV segments they lie in (all attention layers are cut alike).
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short; the state is still whole.
    pub fn reserve(
        &mut self,
        gpu: &Gpu,
        first: u32,
        n: u32,
        context: u32,
    ) -> Result<Option<KvSpan>> {
        let mut span = None;
        for layer in &mut self.layers {
            if let LayerState::Attention(kv) = layer {
                kv.ensure(gpu, first + n, context)?;
                span = Some(kv.span(first, n)?);
            }
        }
        Ok(span)
    }

    fn recurrent(&self) -> impl Iterator<Item = &RecurrentState> {
        self.layers.iter().filter_map(|l| match l {
            LayerState::Recurrent(r) => Some(r),
            LayerState::Attention(_) => None,
        })
    }

    /// A copy of the recurrent part.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn checkpoint(&self, gpu: &Gpu) -> Result<Checkpoint> {
        let copy = |from: &Tensor| {
            let to = state_tensor(gpu, from.rows, from.width)?;
            gpu.copy(&from.buf, &to.buf);
            Ok(to)
        };
        let copies = self
            .recurrent()
            .map(|r| Ok(RecurrentState { conv_tail: copy(&r.conv_tail)?, s: copy(&r.s)? }));
        Ok(Checkpoint { recurrent: copies.collect::<Result<_>>()? })
    }

    /// Puts the recurrent part back to `checkpoint`, which was taken of this sequence.
    pub fn restore(&self, gpu: &Gpu, checkpoint: &Checkpoint) {
        for (from, to) in checkpoint.recurrent.iter().zip(self.recurrent()) {
            gpu.copy(&from.conv_tail.buf, &to.conv_tail.buf);
            gpu.copy(&from.s.buf, &to.s.buf);
        }
    }

    /// Puts the recurrent part back to before the first token.
    pub fn clear(&self, gpu: &Gpu) {
        for r in self.recurrent() {
            gpu.zero(&r.conv_tail.buf);
            gpu.zero(&r.s.buf);
        }
    }
}

fn state_tensor(gpu: &Gpu, rows: u32, width: u32) -> Result<Tensor> {
    let bytes = u64::from(rows) * u64::from(width) * 4;
    Ok(Tensor { buf: gpu.alloc("recurrent state", bytes, MemoryKind::State)?, rows, width })
}
