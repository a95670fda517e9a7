//! Softmax attention, gated or plain, over all tokens or chosen ones (spec/architectures.md 1.3,
//! 4.5.4).

use super::{
    config::{LayerKind, ModelConfig},
    indexer::{self, Indexer},
    state::AttentionState,
    weights::Loader,
    workspace::{AttentionSpace, Share, Step, Workspace},
};
use crate::{
    Error, Result,
    gpu::Recorder,
    kv::{IndexLayer, IndexStep, KvStep},
    ops::{
        Matrix, Tensor,
        attention::{self, Gate},
        bias, kv_write,
        product::{self, Epilogue},
        qk_rope::{self, Heads},
        quantise,
        rope::{HeadNorm, Rotation},
        select_blocks, sparse_attention,
    },
};

/// Weights of one attention block.
#[derive(Debug)]
pub struct Attention {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    output: Matrix,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    q_bias: Option<Tensor>,
    k_bias: Option<Tensor>,
    v_bias: Option<Tensor>,
    output_bias: Option<Tensor>,
    /// None: all tokens are read.
    indexer: Option<Indexer>,
}

impl Attention {
    /// Loads block `il`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn load(loader: &mut Loader<'_>, kind: LayerKind, il: u32) -> Result<Self> {
        let chooses = kind == LayerKind::SparseAttention;
        let name = |part: &str| format!("blk.{il}.{part}");
        Ok(Self {
            q: loader.matrix(&name("attn_q.weight"))?,
            k: loader.matrix(&name("attn_k.weight"))?,
            v: loader.matrix(&name("attn_v.weight"))?,
            output: loader.matrix(&name("attn_output.weight"))?,
            q_norm: loader.optional_vector(&name("attn_q_norm.weight"))?,
            k_norm: loader.optional_vector(&name("attn_k_norm.weight"))?,
            q_bias: loader.optional_vector(&name("attn_q.bias"))?,
            k_bias: loader.optional_vector(&name("attn_k.bias"))?,
            v_bias: loader.optional_vector(&name("attn_v.bias"))?,
            output_bias: loader.optional_vector(&name("attn_output.bias"))?,
            indexer: chooses.then(|| Indexer::load(loader, il)).transpose()?,
        })
    }

    /// `residual += attention(normed)`; keys and values go to layer `il` of every sequence's state at
    /// their positions.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn record(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let Workspace { inputs, normed, residual: x, attention: s, .. } = ws;
        product::record(rec, "attn_q", &self.q, normed, &s.q_gate, n, Epilogue::Store)?;
        self.project_keys(rec, step)?;
        if let Some(b) = &self.q_bias {
            bias::record(rec, b, &s.q_gate, n)?;
        }
        let rotation = Rotation { table: &inputs.rope, kind: config.rope.kind };
        let norm = |gamma| HeadNorm { gamma, eps: config.eps };
        let heads = Heads { count: config.n_head, stride: stride(config) };
        let q_norm = self.q_norm.as_ref().map(norm);
        qk_rope::record(rec, (&s.q_gate, heads), q_norm, rotation, &s.q, n)?;
        if let Some(indexer) = &self.indexer {
            // Keys are for later steps too.
            indexer.project_keys(rec, step)?;
            if !step.dense {
                indexer.project_queries(rec, step)?;
            }
        }
        self.write(rec, step, il)?;
        for share in step.shares {
            self.attend(rec, step, share, share.state.attention_of(il)?)?;
        }
        quantise::record(rec, &s.out, n)?;
        product::record(rec, "attn_output", &self.output, &s.out, x, n, Epilogue::Add)?;
        match &self.output_bias {
            Some(b) => bias::record(rec, b, x, n),
            None => Ok(()),
        }
    }

    /// Queries of a sequence over its keys and values, all or chosen ones.
    fn attend(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        share: &Share<'_>,
        state: &AttentionState,
    ) -> Result<()> {
        let Step { config, ws, .. } = *step;
        let (s, tokens, scale) = (&ws.attention, share.tokens, config.attn_scale);
        let gate = config.gated_attention.then_some(Gate {
            tensor: &s.q_gate,
            first: config.head_dim,
            stride: stride(config),
        });
        let cache = cache(step, share, state)?;
        let KvStep { positions, span, .. } = cache;
        match self.index(state)?.filter(|_| !step.dense) {
            None => attention::record(rec, &s.q, gate, cache, &s.partial, &s.out, tokens, scale),
            Some((_, layer)) => {
                let space = indexer::space(ws)?;
                let keys = IndexStep { layer, positions, span };
                let (scratch, selection) = (&space.scratch, &space.selection);
                select_blocks::record(rec, &space.q, keys, scratch, selection, tokens)?;
                let chosen = (selection, layer.shape());
                let (q, scratch, out) = (&s.q, (&s.partial, &space.gathered), &s.out);
                sparse_attention::record(rec, q, gate, cache, chosen, scratch, out, tokens, scale)
            }
        }
    }

    /// Only what later steps need of this one: its keys, values and index keys, to the state.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn advance(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        self.project_keys(rec, step)?;
        if let Some(indexer) = &self.indexer {
            indexer.project_keys(rec, step)?;
        }
        self.write(rec, step, il)
    }

    /// Keys and values, before norm and rope, to the workspace.
    fn project_keys(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { ws: Workspace { normed, attention: s, .. }, n, .. } = *step;
        product::record(rec, "attn_k", &self.k, normed, &s.k, n, Epilogue::Store)?;
        product::record(rec, "attn_v", &self.v, normed, &s.v, n, Epilogue::Store)?;
        for (b, y) in [(&self.k_bias, &s.k), (&self.v_bias, &s.v)] {
            if let Some(b) = b {
                bias::record(rec, b, y, n)?;
            }
        }
        Ok(())
    }

    /// The keys, values and index keys that are in the workspace, to layer `il` of every sequence's
    /// state at their positions.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn write(&self, rec: &mut Recorder, step: &Step<'_>, il: usize) -> Result<()> {
        let Step { config, ws, .. } = *step;
        let rotation = Rotation { table: &ws.inputs.rope, kind: config.rope.kind };
        let norm = self.k_norm.as_ref().map(|gamma| HeadNorm { gamma, eps: config.eps });
        let AttentionSpace { k, v, .. } = &ws.attention;
        for share in step.shares {
            let state = share.state.attention_of(il)?;
            let cache = cache(step, share, state)?;
            let KvStep { positions, span, .. } = cache;
            kv_write::record(rec, (k, v), norm, rotation, cache, share.tokens)?;
            if let Some((indexer, layer)) = self.index(state)? {
                let keys = IndexStep { layer, positions, span };
                indexer.write(rec, step, keys, share.tokens)?;
            }
        }
        Ok(())
    }

    /// The indexer and its keys, where this block has one.
    fn index<'a>(
        &'a self,
        state: &'a AttentionState,
    ) -> Result<Option<(&'a Indexer, &'a IndexLayer)>> {
        match (&self.indexer, &state.index) {
            (None, None) => Ok(None),
            (Some(indexer), Some(keys)) => Ok(Some((indexer, keys))),
            _ => Err(Error::Model("attention whose state is of another kind".into())),
        }
    }
}

/// Values from one head to the next in `attn_q`'s rows: query and gate lie side by side.
fn stride(config: &ModelConfig) -> u32 {
    if config.gated_attention { 2 * config.head_dim } else { config.head_dim }
}

/// A sequence's cache as the step reads and writes it.
fn cache<'a>(step: &Step<'a>, share: &Share<'_>, state: &'a AttentionState) -> Result<KvStep<'a>> {
    let sparse = state.index.as_ref().filter(|_| !step.dense).map(IndexLayer::shape);
    let span = state.kv.cheapest(share.span()?, share.tokens.n, sparse);
    let Workspace { inputs, staging, .. } = step.ws;
    Ok(KvStep { layer: &state.kv, positions: &inputs.positions, span, staging: staging.as_ref() })
}
