//! What the engine allocates besides weights, found by running its own code over a ledger.

use super::{Checkpoints, Choices, PerToken};
use crate::{
    Result,
    engine::{Batches, most_bytes},
    gpu::{Caps, Ledger, Memory, MemoryReport, Usage},
    kv::{IndexLayer, KvHost, Placement, Staging},
    model::{
        ModelConfig, Workspace,
        state::{AttentionState, SequenceState},
    },
    ops::Tensor,
    sequence::Sequence,
};

/// Dispatches of a layer, about, each of which has a slot of parameters in a recording.
const DISPATCHES: u64 = 18;
/// The same with hyper-connections and an indexer.
const DISPATCHES_OF_STREAMS: u64 = 30;
/// Bytes of a slot.
const SLOT: u64 = 256;
/// Recordings of a sequence that has prefilled and decoded.
const RECORDINGS: u64 = 2;

/// A planned engine with all its sequences at a full context.
pub(super) struct Measured {
    /// Bytes by heap and kind, without weights.
    pub(super) memory: MemoryReport,
    /// Bytes of state among them that are checkpoints.
    pub(super) checkpoints: u64,
    state: SequenceState,
    /// Tokens of a step.
    rows: u32,
}

/// Everything on the device but keys, values and raw index keys, which are `wish`ed where there is
/// room: `device` bytes there, and all that is left over on the host.
///
/// # Errors
/// [`crate::Error::Device`] when something exceeds a binding, or host memory is wished for and
/// cannot be read in place.
pub(super) fn measure(
    config: &ModelConfig,
    choices: &Choices,
    caps: &Caps,
    context: u32,
    (wish, device): (KvHost, u64),
) -> Result<Measured> {
    let ledger = Ledger::new(caps.clone());
    let chunk = choices.chunk.clamp(1, context.max(1));
    let ws = Workspace::new(&ledger, config, chunk, context, choices.sequences)?;
    let hidden = config.n_streams() * config.n_embd;
    let _last = Tensor::scratch(&ledger, "last hidden", 1, hidden)?;
    let placement = Placement { wish, in_place: caps.host_buffers, device, host: u64::MAX };
    let mut sequences = Vec::new();
    for _ in 0..choices.sequences {
        let mut seq = Sequence::new(&ledger, config, choices.cache(), Batches::default().member())?;
        // Segment by segment, as a conversation grows.
        while seq.state.capacity() < context {
            seq.state.reserve(&ledger, seq.state.capacity(), 1, context, &placement)?;
        }
        sequences.push(seq);
    }
    let point = sequences.first().map(|seq| seq.state.new_checkpoint(&ledger)).transpose()?;
    let checkpoint = point.map_or(0, |point| point.bytes());
    let a_layer = config.qwen4exp.as_ref().map_or(DISPATCHES, |_| DISPATCHES_OF_STREAMS);
    let together = u64::from(ws.sequences);
    let of_batches = if together > 1 { Batches::KEPT as u64 * together } else { 0 };
    let recordings = sequences.len() as u64 * RECORDINGS + of_batches;
    let params = config.layers.len() as u64 * a_layer * recordings * SLOT;
    let read = most_bytes(config.n_vocab, ws.sequences);
    let mut memory = ledger.memory();
    memory.device.staging += params + read;
    memory.device.total += params + read;
    let Checkpoints { memory: most, count } = choices.checkpoints;
    let count = u64::from(choices.sequences) * u64::from(count);
    let checkpoints = checkpoint.saturating_mul(count).min(most);
    let heap = if caps.host_buffers { &mut memory.host } else { &mut memory.device };
    heap.state += checkpoints;
    heap.total += checkpoints;
    let rows = ws.rows;
    drop(ws);
    let state = match sequences.pop() {
        Some(seq) => seq.state,
        None => SequenceState::new(&ledger, config, choices.cache())?,
    };
    Ok(Measured { memory, checkpoints, state, rows })
}

impl Measured {
    /// What steps copy keys and values in host memory through.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when it exceeds a binding.
    pub(super) fn streaming(&self, caps: &Caps, context: u32) -> Result<Usage> {
        let ledger = Ledger::new(caps.clone());
        let layer = self.state.attention().next();
        let staging = layer.map(|layer| Staging::new(&ledger, &layer.kv, self.rows, context));
        let _staging = staging.transpose()?;
        Ok(ledger.memory().device)
    }

    /// Bytes of a sequence's state of fixed size.
    pub(super) fn state_bytes(&self) -> u64 {
        self.state.fixed_bytes()
    }

    /// What a token adds to a sequence; the heaps are not told apart yet.
    pub(super) fn per_token(&self) -> PerToken {
        let mut sum = PerToken::default();
        for AttentionState { kv, index } in self.state.attention() {
            let values = u64::from(kv.n_kv()) * u64::from(kv.head_dim());
            sum.k += kv.k_type().bytes(values);
            sum.v += kv.v_type().bytes(values);
            if let Some(index) = index {
                sum.index_raw += index.bytes(1);
                sum.index_pooled += index.bytes(1) / u64::from(index.shape().ratio);
            }
        }
        sum.kv = sum.k + sum.v;
        sum.total = sum.kv + sum.index_raw + sum.index_pooled;
        sum
    }

    /// Bytes of keys and values and of pooled keys that decoding the `depth`th token reads.
    pub(super) fn reads(&self, depth: u32) -> (u64, u64) {
        let position = depth.saturating_sub(1);
        self.state.attention().fold((0, 0), |(kv, pooled), layer| {
            let shape = layer.index.as_ref().map(IndexLayer::shape);
            let attended = shape.map_or(depth, |shape| shape.attended(position));
            let scanned = shape.map_or(0, |shape| shape.scanned(position));
            (
                kv + u64::from(attended) * layer.kv.bytes_per_token(),
                pooled + layer.index.as_ref().map_or(0, |index| index.bytes(scanned)),
            )
        })
    }
}
