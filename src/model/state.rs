//! What a sequence remembers, layer by layer, on the device.

use super::config::{LayerKind, ModelConfig};
use crate::{
    Error, Result,
    gpu::{Gpu, Heap, Memory, MemoryKind},
    kv::{CacheOptions, IndexLayer, KvCounts, KvLayer, KvSpan, Placement, StepTaken},
    ops::Tensor,
    session::{Extent, Part},
};

/// State of one gated delta net layer, f32, updated in place.
#[derive(Debug)]
pub struct RecurrentState {
    /// The last `conv_kernel - 1` raw inputs of the convolution, `[c - 1][conv_dim]`.
    pub conv_tail: Tensor,
    /// `[V][d_k][d_v]`.
    pub s: Tensor,
}

/// State of one attention layer: the only part that grows.
#[derive(Debug)]
pub struct AttentionState {
    /// Keys and values.
    pub kv: KvLayer,
    /// Index keys of the same positions, where an indexer chooses among them.
    pub index: Option<IndexLayer>,
}

/// State of one layer.
#[derive(Debug)]
pub enum LayerState {
    /// Grows with the sequence.
    Attention(AttentionState),
    /// Fixed size.
    Recurrent(RecurrentState),
}

/// All state of one sequence.
#[derive(Debug)]
pub struct SequenceState {
    /// One entry a layer.
    pub layers: Vec<LayerState>,
    /// The normed values that the n-gram embedding's convolution looks back on,
    /// `[tail][streams * n_embd]`, in models that have it.
    pub ngram_tail: Option<Tensor>,
}

/// A copy of the part of fixed size of a sequence at one position. Together with the keys and
/// values up to that position it is the whole state. It lies in host memory where the device
/// reads that: it is seldom needed, and there may be many.
#[derive(Debug)]
pub struct Checkpoint(Vec<Tensor>);

impl Checkpoint {
    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|tensor| tensor.buf.size()).sum()
    }

    /// All of it, for a session file that has it at `position`.
    pub(crate) fn part(&self, position: u32) -> Part {
        Part { name: format!("checkpoint at {position}"), extents: whole(&self.0) }
    }
}

impl SequenceState {
    /// Room for a state; [`Self::clear`] makes it the one before the first token.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new(gpu: &dyn Memory, config: &ModelConfig, cache: CacheOptions) -> Result<Self> {
        let CacheOptions { k, v, staging } = cache;
        let extra = config.qwen4exp.as_ref();
        let tensor = |gpu, shape| state_tensor(gpu, Heap::Device, shape);
        let layer = |kind: &LayerKind| match (kind, &config.gdn) {
            (LayerKind::Recurrent, Some(g)) => Ok(LayerState::Recurrent(RecurrentState {
                conv_tail: tensor(gpu, [g.conv_kernel - 1, g.conv_dim()])?,
                s: tensor(gpu, [g.n_v_heads * g.state_size, g.state_size])?,
            })),
            _ => {
                let kv = KvLayer::new(gpu, config.n_kv, config.head_dim, k, v)?;
                let kv = kv.with_staging(staging);
                let chosen = extra.filter(|_| *kind == LayerKind::SparseAttention);
                let index =
                    chosen.map(|c| IndexLayer::new(c.indexer.shape(), k.of_index())).transpose()?;
                Ok(LayerState::Attention(AttentionState { kv, index }))
            }
        };
        let layers = config.layers.iter().map(layer).collect::<Result<_>>()?;
        let ngram_tail = config
            .ngram()
            .map(|g| tensor(gpu, [g.tail(), config.n_streams() * config.n_embd]))
            .transpose()?;
        Ok(Self { layers, ngram_tail })
    }

    /// Makes room for `n` more tokens from position `first` on, of at most `context`, and returns
    /// the KV segments they lie in (all attention layers are cut alike).
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short; the state is still whole.
    pub fn reserve(
        &mut self,
        gpu: &dyn Memory,
        first: u32,
        n: u32,
        context: u32,
        placement: &Placement,
    ) -> Result<Option<KvSpan>> {
        let mut span = None;
        for layer in &mut self.layers {
            if let LayerState::Attention(AttentionState { kv, index }) = layer {
                let raw_key = index.as_ref().map_or(0, |index| index.bytes(1));
                loop {
                    if let Some(index) = index {
                        index.follow(gpu, kv, context)?;
                    }
                    let Some(cut) = kv.missing(first + n, context)? else { break };
                    let bytes = u64::from(cut.tokens) * (kv.bytes_per_token() + raw_key);
                    let heap = placement.heap(&gpu.memory(), bytes)?;
                    match (kv.grow(gpu, cut, heap), placement.instead_of(heap)) {
                        (Err(_), Some(other)) => kv.grow(gpu, cut, other)?,
                        (grown, _) => grown?,
                    }
                }
                span = Some(kv.span(first, n)?);
            }
        }
        Ok(span)
    }

    /// Tokens there is room for; without attention layers any number.
    pub fn capacity(&self) -> u32 {
        self.attention().map(|state| state.kv.capacity()).min().unwrap_or(u32::MAX)
    }

    /// Attention layers: all have the same sizes and are cut alike.
    pub fn attention(&self) -> impl Iterator<Item = &AttentionState> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerState::Attention(state) => Some(state),
            LayerState::Recurrent(_) => None,
        })
    }

    /// State of layer `il`, which attends.
    ///
    /// # Errors
    /// [`Error::Model`] when it does not.
    pub fn attention_of(&self, il: usize) -> Result<&AttentionState> {
        match self.layers.get(il) {
            Some(LayerState::Attention(state)) => Ok(state),
            _ => Err(another_kind(il)),
        }
    }

    /// State of layer `il`, which is recurrent.
    ///
    /// # Errors
    /// [`Error::Model`] when it is not.
    pub fn recurrent_of(&self, il: usize) -> Result<&RecurrentState> {
        match self.layers.get(il) {
            Some(LayerState::Recurrent(state)) => Ok(state),
            _ => Err(another_kind(il)),
        }
    }

    /// All of the part of fixed size.
    fn fixed(&self) -> impl Iterator<Item = &Tensor> {
        let recurrent = self.layers.iter().filter_map(|l| match l {
            LayerState::Recurrent(r) => Some([&r.conv_tail, &r.s]),
            LayerState::Attention(_) => None,
        });
        recurrent.flatten().chain(&self.ngram_tail)
    }

    /// Bytes of it.
    pub fn fixed_bytes(&self) -> u64 {
        self.fixed().map(|tensor| tensor.buf.size()).sum()
    }

    /// The checkpoint of any position, if there is nothing of fixed size to copy.
    pub fn checkpoint_of_nothing(&self) -> Option<Checkpoint> {
        self.fixed().next().is_none().then(|| Checkpoint(Vec::new()))
    }

    /// Adds what the attention layers read and write in `step`.
    pub fn count(&self, step: StepTaken, counts: &mut KvCounts) {
        counts.begin(step);
        for (il, layer) in (1..).zip(&self.layers) {
            if let LayerState::Attention(AttentionState { kv, index }) = layer {
                // The last layer attends only if that is read.
                let attends = step.read || il < self.layers.len();
                counts.add(kv, index.as_ref(), step, attends);
            }
        }
    }

    /// A copy of the part of fixed size.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn checkpoint(&self, gpu: &Gpu) -> Result<Checkpoint> {
        let checkpoint = self.new_checkpoint(gpu)?;
        for (from, to) in self.fixed().zip(&checkpoint.0) {
            gpu.copy(&from.buf, &to.buf);
        }
        Ok(checkpoint)
    }

    /// Room for one.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new_checkpoint(&self, gpu: &dyn Memory) -> Result<Checkpoint> {
        let heap = if gpu.caps().host_buffers { Heap::Host } else { Heap::Device };
        let room = |like: &Tensor| state_tensor(gpu, heap, [like.rows, like.width]);
        self.fixed().map(room).collect::<Result<_>>().map(Checkpoint)
    }

    /// Puts the part of fixed size back to `checkpoint`, which was taken of this sequence. Index
    /// keys past that position are written again before they are read.
    pub fn restore(&self, gpu: &Gpu, checkpoint: &Checkpoint) {
        for (from, to) in checkpoint.0.iter().zip(self.fixed()) {
            gpu.copy(&from.buf, &to.buf);
        }
    }

    /// All of it after `n` tokens, in the order of a session file.
    pub(crate) fn parts(&self, n: u32) -> Vec<Part> {
        let mut parts = Vec::new();
        for (il, layer) in self.layers.iter().enumerate() {
            let mut add = |what: &str, extents| {
                parts.push(Part { name: format!("{what} of layer {il}"), extents });
            };
            match layer {
                LayerState::Attention(AttentionState { kv, index }) => {
                    let [keys, values] = kv.filled(n);
                    add("keys", keys);
                    add("values", values);
                    if let Some(index) = index {
                        let [raw, pooled] = index.filled(n);
                        add("index keys", raw);
                        add("pooled index keys", pooled);
                    }
                }
                LayerState::Recurrent(RecurrentState { conv_tail, s }) => {
                    add("state", whole([conv_tail, s]));
                }
            }
        }
        let tail = self.ngram_tail.as_ref();
        parts.extend(tail.map(|tail| Part { name: "n-gram state".into(), extents: whole([tail]) }));
        parts
    }

    /// Puts values of `values`, which is told how many, into the part of fixed size.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn fill(&self, gpu: &Gpu, mut values: impl FnMut(usize) -> Vec<f32>) -> Result<()> {
        self.fixed().try_for_each(|tensor| {
            let count = tensor.rows as usize * tensor.width as usize;
            gpu.upload(&tensor.buf, 0, bytemuck::cast_slice(&values(count)))
        })
    }

    /// Puts the part of fixed size back to before the first token.
    pub fn clear(&self, gpu: &Gpu) {
        self.fixed().for_each(|tensor| gpu.zero(&tensor.buf));
    }
}

fn whole<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<Extent> {
    let extent = |tensor: &Tensor| Extent {
        buf: tensor.buf.clone(),
        bytes: u64::from(tensor.rows) * u64::from(tensor.width) * 4,
        tiles: None,
    };
    tensors.into_iter().map(extent).collect()
}

fn another_kind(il: usize) -> Error {
    Error::Model(format!("the state of layer {il} is of another kind"))
}

fn state_tensor(gpu: &dyn Memory, heap: Heap, [rows, width]: [u32; 2]) -> Result<Tensor> {
    let bytes = u64::from(rows) * u64::from(width) * 4;
    Ok(Tensor::of(gpu.alloc_in(heap, "recurrent state", bytes, MemoryKind::State)?, rows, width))
}
