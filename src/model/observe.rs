//! Looking on as a forward pass is recorded; for tests and fault finding.

use super::Workspace;
use crate::gpu::Recorder;

/// What a layer adds to the residual stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// N-gram embedding, in the one layer that has it.
    Ngram,
    /// Attention or gated delta net.
    Mixer,
    /// Feed-forward.
    Ffn,
}

/// Sees scratch as it is recorded.
pub trait Observer {
    /// At this place of the recording layer `il` has added `part` to the first `n` rows of `ws.x`.
    fn after(&mut self, rec: &mut Recorder, il: usize, part: Part, ws: &Workspace, n: u32);
}
