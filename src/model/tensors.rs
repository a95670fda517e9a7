//! Which tensors a model has, and their shapes (spec/architectures.md 3).

use super::config::{Ffn, Gdn, LayerKind, ModelConfig};
use super::factors::is_factor;
use super::qwen4exp::{Indexer, Qwen4ExpConfig};
use crate::gguf::Gguf;
use crate::{Error, Result};

/// A tensor that a model of some configuration has or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The full name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements along each dimension, the contiguous one first; 1 where unused.
    pub dims: [u64; 4],
    /// Whether the forward pass cannot do without.
    pub required: bool,
}

/// All tensors of a model. `present` says which of several forms a file has: merged gate and up
/// experts, or separate ones (also if neither is there).
pub fn expected_tensors(config: &ModelConfig, present: impl Fn(&str) -> bool) -> Vec<TensorSpec> {
    let mut list = List { config, present, specs: Vec::new(), block: None, required: true };
    list.globals();
    for (block, &kind) in config.layers.iter().enumerate() {
        list.block = Some(block);
        match (kind, &config.gdn) {
            (LayerKind::Recurrent, Some(gdn)) => list.gdn(gdn),
            _ => list.attention(),
        }
        list.ffn();
        match &config.qwen4exp {
            Some(extra) => list.qwen4exp(extra, block as u32, kind),
            None => list.block_norms(),
        }
    }
    for block in 0..config.n_mtp {
        list.block = Some((config.n_layer + block) as usize);
        // The main pass runs without them.
        list.required = false;
        list.block_norms();
        list.attention();
        list.ffn();
        list.mtp();
    }
    list.specs
}

/// Checks the tensors of a file: all there, each of the right shape. Returns the names of those
/// that no part of the model uses.
///
/// # Errors
/// One error that lists every missing tensor and every wrong shape; or a scale beside a tensor,
/// which would be ignored.
pub fn check_tensors(config: &ModelConfig, gguf: &Gguf) -> Result<Vec<String>> {
    let specs = expected_tensors(config, |name| gguf.tensor(name).is_some());
    let mut faults = Vec::new();
    for spec in &specs {
        match gguf.tensor(&spec.name) {
            None if spec.required => faults.push(format!("`{}` is missing", spec.name)),
            Some(found) if found.dims != spec.dims => faults.push(format!(
                "`{}` has shape {:?}, not {:?}",
                spec.name,
                found.shape(),
                &spec.dims[..found.n_dims.max(used(&spec.dims))],
            )),
            _ => {}
        }
    }
    if !faults.is_empty() {
        return Err(Error::Model(format!(
            "the tensors of {} do not fit: {}",
            config.arch,
            faults.join("; ")
        )));
    }
    let names: std::collections::HashSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    let extra = gguf.tensors().iter().filter(|t| !names.contains(t.name.as_str()));
    let mut unused = Vec::new();
    for tensor in extra {
        if !is_factor(gguf, tensor)? {
            unused.push(tensor.name.clone());
        }
    }
    Ok(unused)
}

/// Dimensions up to the last that is not 1, at least one.
fn used(dims: &[u64; 4]) -> usize {
    dims.iter().rposition(|&d| d != 1).map_or(1, |i| i + 1)
}

/// The list as it grows, with the block it is at.
struct List<'a, P> {
    config: &'a ModelConfig,
    present: P,
    specs: Vec<TensorSpec>,
    block: Option<usize>,
    required: bool,
}

impl<P: Fn(&str) -> bool> List<'_, P> {
    /// The full name of a tensor of the block.
    fn full(&self, name: &str) -> String {
        match self.block {
            Some(block) => format!("blk.{block}.{name}"),
            None => name.to_owned(),
        }
    }

    fn push(&mut self, name: &str, shape: &[u32], required: bool) {
        let mut dims = [1; 4];
        dims.iter_mut().zip(shape).for_each(|(dim, &n)| *dim = n.into());
        self.specs.push(TensorSpec { name: self.full(name), dims, required });
    }

    /// A tensor `NAME.weight` that has to be there.
    fn weight(&mut self, name: &str, shape: &[u32]) {
        self.push(&format!("{name}.weight"), shape, self.required);
    }

    /// A tensor `NAME.weight` that may be there.
    fn may_weight(&mut self, name: &str, shape: &[u32]) {
        self.push(&format!("{name}.weight"), shape, false);
    }

    fn globals(&mut self) {
        let ModelConfig { n_embd, n_vocab, ref rope, arch, .. } = *self.config;
        self.weight("token_embd", &[n_embd, n_vocab]);
        match &self.config.qwen4exp {
            Some(extra) => self.hyper("output_hc", extra),
            None => self.weight("output_norm", &[n_embd]),
        }
        if let Some(ngram) = self.config.ngram() {
            self.weight("per_layer_token_embd", &[ngram.row_width, ngram.table_rows]);
        }
        // Without it the embedding serves as output.
        self.may_weight("output", &[n_embd, n_vocab]);
        if arch.has_rope_factors() {
            self.may_weight("rope_freqs", &[rope.n_rot / 2]);
        }
    }

    fn block_norms(&mut self) {
        let ModelConfig { n_embd, arch, .. } = *self.config;
        self.weight("attn_norm", &[n_embd]);
        self.weight(arch.ffn_norm(), &[n_embd]);
    }

    fn attention(&mut self) {
        let ModelConfig { n_embd, n_head, n_kv, head_dim, arch, .. } = *self.config;
        let gate = if self.config.gated_attention { 2 } else { 1 };
        let (q, kv) = (head_dim * n_head, head_dim * n_kv);
        self.weight("attn_q", &[n_embd, gate * q]);
        self.weight("attn_k", &[n_embd, kv]);
        self.weight("attn_v", &[n_embd, kv]);
        self.weight("attn_output", &[q, n_embd]);
        if arch.has_qk_norm() {
            self.weight("attn_q_norm", &[head_dim]);
            self.weight("attn_k_norm", &[head_dim]);
        }
        if arch.has_biases() {
            self.push("attn_q.bias", &[q], false);
            self.push("attn_k.bias", &[kv], false);
            self.push("attn_v.bias", &[kv], false);
            self.push("attn_output.bias", &[n_embd], false);
        }
    }

    fn gdn(&mut self, gdn: &Gdn) {
        let n_embd = self.config.n_embd;
        self.weight("attn_qkv", &[n_embd, gdn.conv_dim()]);
        self.weight("attn_gate", &[n_embd, gdn.value_dim()]);
        self.weight("ssm_conv1d", &[gdn.conv_kernel, gdn.conv_dim()]);
        self.push("ssm_dt.bias", &[gdn.n_v_heads], self.required);
        self.push("ssm_a", &[gdn.n_v_heads], self.required);
        self.weight("ssm_alpha", &[n_embd, gdn.n_v_heads]);
        self.weight("ssm_beta", &[n_embd, gdn.n_v_heads]);
        self.weight("ssm_norm", &[gdn.state_size]);
        self.weight("ssm_out", &[gdn.value_dim(), n_embd]);
    }

    fn ffn(&mut self) {
        let n_embd = self.config.n_embd;
        match self.config.ffn {
            Ffn::Dense { n_ff } => {
                self.weight("ffn_gate", &[n_embd, n_ff]);
                self.weight("ffn_up", &[n_embd, n_ff]);
                self.weight("ffn_down", &[n_ff, n_embd]);
                if self.config.arch.has_biases() {
                    self.push("ffn_gate.bias", &[n_ff], false);
                    self.push("ffn_up.bias", &[n_ff], false);
                    self.push("ffn_down.bias", &[n_embd], false);
                }
            }
            Ffn::Moe { n_expert, n_ff_exp: ff, n_ff_shared, .. } => {
                self.weight("ffn_gate_inp", &[n_embd, n_expert]);
                if (self.present)(&self.full("ffn_gate_up_exps.weight")) {
                    self.weight("ffn_gate_up_exps", &[n_embd, 2 * ff, n_expert]);
                } else {
                    self.weight("ffn_gate_exps", &[n_embd, ff, n_expert]);
                    self.weight("ffn_up_exps", &[n_embd, ff, n_expert]);
                }
                self.weight("ffn_down_exps", &[ff, n_embd, n_expert]);
                if let Some(ff) = n_ff_shared {
                    self.weight("ffn_gate_inp_shexp", &[n_embd]);
                    self.weight("ffn_gate_shexp", &[n_embd, ff]);
                    self.weight("ffn_up_shexp", &[n_embd, ff]);
                    self.weight("ffn_down_shexp", &[ff, n_embd]);
                }
            }
        }
    }

    /// What mixes the streams into one.
    fn hyper(&mut self, name: &str, extra: &Qwen4ExpConfig) {
        let streams = extra.streams * self.config.n_embd;
        self.weight(&format!("{name}_norm"), &[streams]);
        self.weight(&format!("{name}_down"), &[streams, extra.low_rank]);
        self.weight(&format!("{name}_up"), &[extra.low_rank, streams]);
    }

    fn qwen4exp(&mut self, extra: &Qwen4ExpConfig, block: u32, kind: LayerKind) {
        let n_embd = self.config.n_embd;
        let streams = extra.streams * n_embd;
        for part in ["hc_attn", "hc_ffn"] {
            self.hyper(part, extra);
            self.weight(&format!("{part}_inject"), &[streams, extra.streams]);
        }
        if kind == LayerKind::SparseAttention {
            let Indexer { n_head, head_dim, .. } = extra.indexer;
            self.weight("indexer.q_proj", &[n_embd, n_head * head_dim]);
            self.weight("indexer.k_proj", &[n_embd, head_dim]);
            self.weight("indexer.q_norm", &[head_dim]);
            self.weight("indexer.k_norm", &[head_dim]);
        }
        if let Some(ngram) = extra.ngram.as_ref().filter(|ngram| ngram.layer == block) {
            self.weight("ple_key", &[ngram.width(), streams]);
            self.weight("ple_value", &[ngram.width(), n_embd]);
            for norm in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
                self.weight(norm, &[streams]);
            }
            self.weight("ple_conv1d", &[ngram.conv_kernel, streams]);
        }
    }

    fn mtp(&mut self) {
        let ModelConfig { n_embd, n_vocab, .. } = *self.config;
        self.weight("nextn.eh_proj", &[2 * n_embd, n_embd]);
        self.weight("nextn.enorm", &[n_embd]);
        self.weight("nextn.hnorm", &[n_embd]);
        self.may_weight("nextn.shared_head_norm", &[n_embd]);
        self.may_weight("nextn.embed_tokens", &[n_embd, n_vocab]);
        self.may_weight("nextn.shared_head_head", &[n_embd, n_vocab]);
    }
}
