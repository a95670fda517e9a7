//! Scratch of a forward pass: one set for all sequences, which take turns or step together. Siblings that can run
//! side by side have buffers of their own, so that no barrier falls between them.

use super::{
    config::{Ffn, Gdn, LayerKind, ModelConfig},
    qwen4exp::Ngram,
    state::SequenceState,
};
use crate::{
    Error, Result,
    gpu::{Buf, Gpu, Heap, Memory, MemoryKind},
    kv::{FEW, KvLayer, KvSpan, LONGEST, Staging},
    ops::{
        Routing, Tensor, Tokens, attention::AttentionScratch, experts::ExpertScratch,
        gated_delta::GatedDeltaScratch, host_rows::HostRows, product, select_blocks::SelectScratch,
        sparse_attention::GatherScratch, top_blocks::Selection,
    },
};

/// What the host writes before a step.
#[derive(Debug)]
pub struct Inputs {
    /// Token ids, u32 `[n]`.
    pub tokens: Buf,
    /// Positions, u32 `[n]`, those of a sequence ascending by one.
    pub positions: Buf,
    /// cos and sin of every pair at every position, f32 `[n][n_rot / 2][2]`.
    pub rope: Tensor,
}

/// Scratch of the indexer, and the part of a step's inputs that is for it.
#[derive(Debug)]
pub struct IndexerSpace {
    /// cos and sin of the first position of every block that a sequence of the step touches, from
    /// the row of its first token on.
    pub block_rope: Tensor,
    /// Queries before norm and rope.
    pub q_raw: Tensor,
    /// Queries.
    pub q: Tensor,
    /// The step's raw keys.
    pub k: Tensor,
    /// Scores and candidates.
    pub scratch: SelectScratch,
    /// The blocks each query of the step reads, of the layer recorded last.
    pub selection: Selection,
    /// The keys and values that one query reads.
    pub gathered: GatherScratch,
}

/// Scratch of the n-gram embedding, and the rows that the host writes in the middle of a step.
#[derive(Debug)]
pub struct NgramSpace {
    /// Rows of the table, those of a token side by side.
    pub rows: Tensor,
    /// The value.
    pub value: Tensor,
}

/// Scratch of softmax attention.
#[derive(Debug)]
pub struct AttentionSpace {
    /// Output of `attn_q`: queries, or queries and gates side by side.
    pub q_gate: Tensor,
    /// Keys before norm and rope.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Queries after norm and rope.
    pub q: Tensor,
    /// Attention output.
    pub out: Tensor,
    /// Partial softmax states.
    pub partial: AttentionScratch,
}

/// Scratch of the gated delta net.
#[derive(Debug)]
pub struct GatedDeltaSpace {
    /// Output of `attn_qkv`.
    pub qkv: Tensor,
    /// The output gate.
    pub z: Tensor,
    /// Decay inputs, then update strengths before the sigmoid.
    pub gates: Tensor,
    /// `qkv` after convolution and silu.
    pub u: Tensor,
    /// Output of the recurrence.
    pub o: Tensor,
    /// The same, normed and gated.
    pub gated: Tensor,
    /// Intermediates of the chunked form.
    pub chunk: GatedDeltaScratch,
}

/// Scratch of routed experts.
#[derive(Debug)]
pub struct MoeSpace {
    /// Router logits.
    pub logits: Tensor,
    /// Chosen experts and their weights.
    pub routing: Routing,
    /// Intermediates of the expert products.
    pub experts: ExpertScratch,
    /// The shared expert's hidden values.
    pub shared_hidden: Option<Tensor>,
}

/// Scratch of the feed-forward part.
#[derive(Debug)]
pub enum FfnSpace {
    /// Hidden values.
    Dense(Tensor),
    /// Router and experts.
    Moe(Box<MoeSpace>),
}

/// Scratch of hyper-connections (spec/architectures.md 4.5.2).
#[derive(Debug)]
pub struct StreamSpace {
    /// The normed streams N.
    pub normed: Tensor,
    /// The low-rank values l.
    pub low: Tensor,
    /// The gates before the sigmoid.
    pub gates: Tensor,
    /// The injection weights around mixer and feed-forward part, before the sigmoid: what each stream
    /// adds to those of all.
    pub weights: [Tensor; 2],
}

/// What a step has of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// Its tokens.
    pub tokens: Tokens,
    /// What it remembers.
    pub state: &'a SequenceState,
    /// The KV segments that the tokens' positions lie in; none without attention layers.
    pub span: Option<KvSpan>,
}

impl Share<'_> {
    /// The segments that keys and values go to.
    ///
    /// # Errors
    /// [`Error::Model`] when no room was made.
    pub fn span(&self) -> Result<KvSpan> {
        self.span.ok_or_else(|| Error::Model("no room for keys and values".into()))
    }
}

/// One pass over the layers: what is recorded once for its shape.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The model's configuration.
    pub config: &'a ModelConfig,
    /// Inputs and scratch.
    pub ws: &'a Workspace,
    /// Tokens of all sequences together.
    pub n: u32,
    /// Whose they are, row by row.
    pub shares: &'a [Share<'a>],
    /// Every token sees all before it: layers that select what they read need not do so.
    pub dense: bool,
    /// Whether anyone reads what the last layer leaves: if not, it only advances its state.
    pub read: bool,
}

/// All scratch of a model for steps of up to `rows` tokens.
#[derive(Debug)]
pub struct Workspace {
    /// Tokens a step may have.
    pub rows: u32,
    /// Sequences a step may have.
    pub sequences: u32,
    /// What the host writes.
    pub inputs: Inputs,
    /// The residual stream `[rows][n_embd]`, or all streams side by side.
    pub x: Tensor,
    /// What blocks add their output to: x, or with several streams a tensor of its own.
    pub residual: Tensor,
    /// A block's normed input.
    pub normed: Tensor,
    /// Attention.
    pub attention: AttentionSpace,
    /// Gated delta net, where the model has it.
    pub gated_delta: Option<GatedDeltaSpace>,
    /// Feed-forward.
    pub ffn: FfnSpace,
    /// Streams, where the model has several.
    pub streams: Option<StreamSpace>,
    /// Indexer, where attention chooses what it reads.
    pub indexer: Option<IndexerSpace>,
    /// N-gram embedding, where the model has it.
    pub ngram: Option<NgramSpace>,
    /// Logits of all sequences of a step, before each takes its own; none where a step has one.
    pub logits: Option<Tensor>,
    /// Where keys and values in host memory are copied for steps of many tokens, once there are
    /// any.
    pub staging: Option<Staging>,
}

impl Workspace {
    /// Allocates for steps of at most `rows` tokens, fewer where a tensor of that many would
    /// exceed one binding, of one sequence of up to `context` tokens or one token of each of up to
    /// `sequences`, of which no more than [`FEW`] step together.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short or even one row exceeds a binding,
    /// [`Error::Context`] for a context beyond [`LONGEST`].
    pub fn new(
        gpu: &dyn Memory,
        config: &ModelConfig,
        rows: u32,
        context: u32,
        sequences: u32,
    ) -> Result<Self> {
        if context > LONGEST {
            let fault =
                format!("a context of {context} tokens is more than the {LONGEST} there can be");
            return Err(Error::Context(fault));
        }
        let widest = u64::from(widest_row(config)) * 4;
        let fitting = (gpu.caps().max_binding / widest).clamp(1, u64::from(rows));
        let rows = fitting as u32;
        let logits = u64::from(config.n_vocab) * 4;
        let fitting = (gpu.caps().max_binding / logits).clamp(1, FEW.into()) as u32;
        let sequences = sequences.clamp(1, fitting).min(rows);
        let scratch = |label: &str, width: u32| Tensor::scratch(gpu, label, rows, width);
        let factor =
            |label: &str, width: u32| Tensor::factor(gpu, label, rows, width, product::FEW);
        let words = |label: &str| gpu.alloc(label, u64::from(rows) * 4, MemoryKind::Scratch);
        let inputs = Inputs {
            tokens: words("tokens")?,
            positions: words("positions")?,
            rope: scratch("rope", config.rope.n_rot)?,
        };
        let (q_width, kv_width) = (config.n_head * config.head_dim, config.n_kv * config.head_dim);
        let attention = AttentionSpace {
            q_gate: scratch("q_gate", q_gate_width(config))?,
            k: scratch("k", kv_width)?,
            v: scratch("v", kv_width)?,
            q: scratch("q", q_width)?,
            out: factor("attention", q_width)?,
            partial: AttentionScratch::new(gpu, config.n_head, config.head_dim, rows, sequences)?,
        };
        let gated_delta = match &config.gdn {
            None => None,
            Some(g) => Some(GatedDeltaSpace {
                qkv: scratch("qkv", g.conv_dim())?,
                z: scratch("z", g.value_dim())?,
                gates: scratch("gates", 2 * g.n_v_heads)?,
                u: scratch("u", g.conv_dim())?,
                o: scratch("o", g.value_dim())?,
                gated: factor("gated", g.value_dim())?,
                chunk: GatedDeltaScratch::new(gpu, &super::gated_delta::shape(g), rows)?,
            }),
        };
        let ffn = match &config.ffn {
            Ffn::Dense { n_ff } => FfnSpace::Dense(factor("ffn", *n_ff)?),
            Ffn::Moe { n_expert, n_used, n_ff_exp, n_ff_shared, .. } => {
                let mut routing = Routing::new(gpu, rows, *n_used)?;
                let mut shared_hidden = None;
                if let Some(width) = n_ff_shared {
                    routing = routing.with_shared(gpu, config.n_embd)?;
                    // So few weights follow that to make whole numbers for them takes longer.
                    let hidden = Tensor::factor(gpu, "shared hidden", rows, *width, 0)?;
                    shared_hidden = Some(hidden);
                }
                FfnSpace::Moe(Box::new(MoeSpace {
                    logits: scratch("router", n_expert + u32::from(n_ff_shared.is_some()))?,
                    routing,
                    shared_hidden,
                    experts: ExpertScratch::new(
                        gpu,
                        rows,
                        *n_used,
                        *n_expert,
                        *n_ff_exp,
                        config.n_embd,
                    )?,
                }))
            }
        };
        let x = scratch("x", config.n_streams() * config.n_embd)?;
        let streams = match &config.qwen4exp {
            None => None,
            Some(c) => Some(StreamSpace {
                normed: factor("normed streams", x.width)?,
                low: Tensor::factor(gpu, "low rank", rows, c.low_rank, 0)?,
                gates: scratch("stream gates", x.width)?,
                weights: [
                    scratch("mixer's stream weights", c.streams * c.streams)?,
                    scratch("feed-forward's stream weights", c.streams * c.streams)?,
                ],
            }),
        };
        let sparse = config.layers.contains(&LayerKind::SparseAttention);
        let indexer = match config.qwen4exp.as_ref().filter(|_| sparse) {
            None => None,
            Some(c) => {
                let shape = c.indexer.shape();
                let width = shape.heads * shape.head_dim;
                let blocks = shape.touched(rows).max(sequences);
                Some(IndexerSpace {
                    block_rope: Tensor::scratch(gpu, "block rope", blocks, config.rope.n_rot)?,
                    q_raw: scratch("indexer q raw", width)?,
                    q: scratch("indexer q", width)?,
                    k: scratch("indexer k", shape.head_dim)?,
                    scratch: SelectScratch::new(gpu, shape, rows, context)?,
                    selection: Selection::new(gpu, shape, rows)?,
                    gathered: GatherScratch::new(
                        gpu,
                        shape,
                        config.n_kv,
                        config.head_dim,
                        sequences,
                    )?,
                })
            }
        };
        let ngram = match config.ngram() {
            None => None,
            Some(ngram) => Some(NgramSpace {
                // The host writes them, and only as they are.
                rows: Tensor::factor(gpu, "ngram rows", rows, ngram.width(), 0)?,
                value: scratch("ngram value", config.n_embd)?,
            }),
        };
        let logits = (sequences > 1)
            .then(|| Tensor::scratch(gpu, "logits of a step", sequences, config.n_vocab))
            .transpose()?;
        Ok(Self {
            rows,
            sequences,
            logits,
            inputs,
            indexer,
            ngram,
            staging: None,
            residual: match streams {
                None => x.clone(),
                Some(_) => scratch("block output", config.n_embd)?,
            },
            x,
            streams,
            normed: factor("normed", config.n_embd)?,
            attention,
            gated_delta,
            ffn,
        })
    }

    /// What queries have read of host memory, where they choose what they read.
    pub fn host_rows(&self) -> Option<&HostRows> {
        self.indexer.as_ref().map(|space| &space.gathered.host_rows)
    }

    /// Makes staging once a step of many tokens finds a cache in host memory, and writes to it
    /// what depends on the position of the step of `n` tokens from `first` on.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn stage(
        &mut self,
        gpu: &Gpu,
        state: &SequenceState,
        (first, n): (u32, u32),
        context: u32,
    ) -> Result<()> {
        if n <= FEW {
            return Ok(());
        }
        if self.staging.is_none() {
            let on_host = |kv: &&KvLayer| kv.segments().iter().any(|s| s.heap() == Heap::Host);
            let mut caches = state.attention().map(|state| &state.kv);
            let new = |kv| Staging::new(gpu, kv, self.rows, context);
            self.staging = caches.find(on_host).map(new).transpose()?;
            self.staging.iter().for_each(|staging| staging.clear(gpu));
        }
        self.staging.as_ref().map_or(Ok(()), |staging| staging.begin(gpu, first, n))
    }
}

/// Values a token takes in the widest tensor of a step.
fn widest_row(config: &ModelConfig) -> u32 {
    let gdn = config.gdn.as_ref().map_or(0, Gdn::conv_dim);
    let ffn = match &config.ffn {
        Ffn::Dense { n_ff } => *n_ff,
        Ffn::Moe { n_expert, n_used, n_ff_exp, .. } => {
            (n_used * n_ff_exp.max(&config.n_embd)).max(*n_expert)
        }
    };
    let extra = config.qwen4exp.as_ref().map_or(0, |c| {
        let shape = c.indexer.shape();
        // Candidates of a selection: those of its last chunk, and a share of the scores before.
        let selection = shape.most().saturating_mul(2);
        selection.max(shape.heads * shape.head_dim).max(c.low_rank)
    });
    let ngram = config.ngram().map_or(0, Ngram::width);
    [config.n_streams() * config.n_embd, q_gate_width(config), gdn, ffn, extra, ngram]
        .into_iter()
        .max()
        .unwrap_or(1)
}

/// Rows of `attn_q`: queries, and gates beside them.
fn q_gate_width(config: &ModelConfig) -> u32 {
    let parts = if config.gated_attention { 2 } else { 1 };
    parts * config.n_head * config.head_dim
}
