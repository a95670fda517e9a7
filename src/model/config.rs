//! What the metadata of a file say about its model (spec/architectures.md 2).

use serde::Serialize;

use super::arch::Arch;
use super::keys::Keys;
use super::qwen4exp::{Ngram, Qwen4ExpConfig};
use super::rope::{Rope, RopeScaling, Yarn};
use crate::Result;
use crate::gguf::{Gguf, Metadata, OneOrMany, Strings};

/// The geometry of a model: all that its forward pass needs besides the weights.
///
/// Values are checked against each other: heads divide, widths agree, and the width of all heads
/// together, of a gated query, or of a pair of feed-forward halves fits in u32 with room to spare.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The architecture.
    pub arch: Arch,
    /// Layers of the main pass; draft (MTP) blocks come after them and do not count.
    pub n_layer: u32,
    /// Draft (MTP) blocks.
    pub n_mtp: u32,
    /// Width of the residual stream.
    pub n_embd: u32,
    /// Rows of the embedding and of the output, padding included.
    pub n_vocab: u32,
    /// Query heads of softmax attention.
    pub n_head: u32,
    /// Key and value heads of softmax attention; divides `n_head`.
    pub n_kv: u32,
    /// Width of a query, key or value head.
    pub head_dim: u32,
    /// Added to the mean of squares in RMSNorm.
    pub eps: f32,
    /// Factor of query-key products before the softmax.
    pub attn_scale: f32,
    /// Trained context in tokens.
    pub context_length: u32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether attention's output is gated by a second half of each query head.
    pub gated_attention: bool,
    /// The feed-forward network of every layer.
    pub ffn: Ffn,
    /// Linear attention, in models that have such layers.
    pub gdn: Option<Gdn>,
    /// Streams, indexer and n-gram embedding, in models that have streams.
    pub qwen4exp: Option<Qwen4ExpConfig>,
    /// What mixes tokens in each of the `n_layer` layers.
    pub layers: Vec<LayerKind>,
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Softmax attention over a KV cache.
    Attention,
    /// The same over the tokens that an indexer chooses.
    SparseAttention,
    /// Gated delta net with a state of fixed size.
    Recurrent,
}

/// The feed-forward network of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ffn {
    /// One gated network.
    Dense {
        /// Its inner width.
        n_ff: u32,
    },
    /// Experts, of which a router chooses some for each token.
    Moe {
        /// Experts in a layer.
        n_expert: u32,
        /// Experts that a token uses.
        n_used: u32,
        /// Inner width of an expert.
        n_ff_exp: u32,
        /// Inner width of the expert that every token uses besides, if there is one.
        n_ff_shared: Option<u32>,
        /// Factor of the router's weights; 1 unless the file says otherwise.
        weights_scale: f32,
    },
}

/// Sizes of the gated delta net (spec/architectures.md 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gdn {
    /// Key (and query) heads.
    pub n_k_heads: u32,
    /// Value heads, a multiple of the key heads; head `h` uses key head `h mod n_k_heads`.
    pub n_v_heads: u32,
    /// Width of a key head and of a value head: the state of a value head is its square.
    pub state_size: u32,
    /// Taps of the causal convolution.
    pub conv_kernel: u32,
}

impl Gdn {
    /// Width of all key heads together.
    pub fn key_dim(&self) -> u32 {
        self.n_k_heads * self.state_size
    }

    /// Width of all value heads together.
    pub fn value_dim(&self) -> u32 {
        self.n_v_heads * self.state_size
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn conv_dim(&self) -> u32 {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Largest width of the stream or of a feed-forward network.
const MAX_WIDTH: u32 = 1 << 20;
/// Most heads, groups or experts.
const MAX_COUNT: u32 = 1 << 16;
/// Largest width of a head.
const MAX_HEAD_DIM: u32 = 512;
/// Most blocks.
const MAX_BLOCKS: u32 = 1024;
/// Most taps of the convolution.
const MAX_CONV_KERNEL: u32 = 64;

impl ModelConfig {
    /// The n-gram embedding, in models that have it.
    pub fn ngram(&self) -> Option<&Ngram> {
        self.qwen4exp.as_ref().and_then(|c| c.ngram.as_ref())
    }

    /// Residual streams of a token.
    pub fn n_streams(&self) -> u32 {
        self.qwen4exp.as_ref().map_or(1, |c| c.streams)
    }

    /// Reads and checks the configuration of a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        Self::read(gguf.metadata(), &|name| gguf.tensor(name).map(|t| t.dims[1]))
    }

    /// Reads and checks the configuration. `rows` gives dimension 1 of tensors that are at hand.
    ///
    /// # Errors
    /// An architecture we do not run, or a key that is missing, mistyped, out of range, or at
    /// odds with another one; the error names it.
    pub fn read(metadata: &Metadata, rows: &dyn Fn(&str) -> Option<u64>) -> Result<Self> {
        let arch = Arch::from_name(metadata.require("general.architecture")?)?;
        let keys = Keys::new(metadata, arch);
        let n_block = keys.count("block_count", MAX_BLOCKS)?;
        let n_mtp = match arch.is_hybrid() {
            true => keys.optional("nextn_predict_layers")?.unwrap_or(0),
            false => 0,
        };
        if n_mtp >= n_block {
            let fault = format!("is {n_mtp}, but there are only {n_block} blocks in all");
            return Err(keys.error("nextn_predict_layers", &fault));
        }
        let n_layer = n_block - n_mtp;
        let mut layers = layers(&keys, n_layer, n_block)?;
        let is_attention = |block| layers.get(block) != Some(&LayerKind::Recurrent);

        let n_embd = keys.count("embedding_length", MAX_WIDTH)?;
        let heads = |key| keys.count_of_blocks(key, MAX_COUNT, n_block, is_attention);
        let n_head =
            heads("attention.head_count")?.ok_or_else(|| keys.missing("attention.head_count"))?;
        let n_kv = heads("attention.head_count_kv")?.unwrap_or(n_head);
        if !n_head.is_multiple_of(n_kv) {
            let fault = format!("is {n_kv}, which does not divide the {n_head} query heads");
            return Err(keys.error("attention.head_count_kv", &fault));
        }
        let head_dim = head_dim(&keys, n_embd, n_head)?;
        let context_length = keys.count("context_length", u32::MAX)?;
        let scale = keys.float("attention.scale")?.filter(|&scale| scale != 0.0);
        let rope = rope(&keys, head_dim, context_length)?;
        let qwen4exp = match arch.has_streams() {
            true => Some(Qwen4ExpConfig::read(&keys, rows, &mut layers, rope.n_rot)?),
            false => None,
        };
        Ok(Self {
            arch,
            n_layer,
            n_mtp,
            n_embd,
            n_vocab: n_vocab(&keys, rows("token_embd.weight"))?,
            n_head,
            n_kv,
            head_dim,
            eps: keys
                .positive_float("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
            attn_scale: scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
            context_length,
            rope,
            gated_attention: arch.is_hybrid(),
            ffn: ffn(&keys, n_block)?,
            gdn: arch.is_hybrid().then(|| gdn(&keys)).transpose()?,
            qwen4exp,
            layers,
        })
    }
}

/// Which layers are recurrent: by a list of one entry a block, or else by the interval rule.
fn layers(keys: &Keys, n_layer: u32, n_block: u32) -> Result<Vec<LayerKind>> {
    const LIST: &str = "attention.recurrent_layers";
    let kind = |recurrent| if recurrent { LayerKind::Recurrent } else { LayerKind::Attention };
    if !keys.arch.is_hybrid() {
        return Ok(vec![LayerKind::Attention; n_layer as usize]);
    }
    let interval = keys.optional_count("full_attention_interval", u32::MAX)?.unwrap_or(4);
    let layers: Vec<_> = match keys.optional::<Vec<bool>>(LIST)? {
        Some(list) if list.len() < n_block as usize => {
            let fault = format!("has {} entries for {n_block} blocks", list.len());
            return Err(keys.error(LIST, &fault));
        }
        Some(list) => list.into_iter().take(n_layer as usize).map(kind).collect(),
        None => (1..=n_layer).map(|i| kind(!i.is_multiple_of(interval))).collect(),
    };
    Ok(layers)
}

fn head_dim(keys: &Keys, n_embd: u32, n_head: u32) -> Result<u32> {
    let key_length = match keys.optional_count("attention.key_length", MAX_HEAD_DIM)? {
        Some(d) => d,
        None if n_embd.is_multiple_of(n_head) && n_embd / n_head <= MAX_HEAD_DIM => n_embd / n_head,
        None => return Err(keys.missing("attention.key_length")),
    };
    let value_length = keys.optional_count("attention.value_length", MAX_HEAD_DIM)?;
    match value_length {
        Some(d) if d != key_length => {
            let fault = format!("is {d}, but keys are {key_length} wide; both have to be equal");
            Err(keys.error("attention.value_length", &fault))
        }
        _ => Ok(key_length),
    }
}

/// The key, else the rows of the embedding, else the tokens; no fewer than there are tokens.
fn n_vocab(keys: &Keys, rows: Option<u64>) -> Result<u32> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let tokens = keys.metadata.optional::<&Strings>(TOKENS)?.map(|t| t.len() as u64);
    let n_vocab = match keys.optional_count("vocab_size", u32::MAX)? {
        Some(n) => n,
        None => rows
            .or(tokens)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n > 0)
            .ok_or_else(|| keys.missing("vocab_size"))?,
    };
    match tokens {
        Some(tokens) if tokens > n_vocab.into() => {
            let fault = format!("has {tokens} entries, the vocabulary only {n_vocab} rows");
            Err(keys.metadata.error(TOKENS, &fault))
        }
        _ => Ok(n_vocab),
    }
}

fn rope(keys: &Keys, head_dim: u32, context_length: u32) -> Result<Rope> {
    if keys.arch.is_hybrid() {
        // Which pairs turn with which of three positions; with text all three are equal.
        keys.require::<OneOrMany<i32>>("rope.dimension_sections")?;
    }
    let n_rot = keys.optional_count("rope.dimension_count", head_dim)?.unwrap_or(head_dim);
    if !n_rot.is_multiple_of(2) {
        return Err(keys.error("rope.dimension_count", &format!("is {n_rot}, an odd number")));
    }
    let base = keys.float("rope.freq_base")?.map_or(10_000.0, f64::from);
    if base <= 1.0 {
        return Err(keys.error("rope.freq_base", &format!("is {base}, not above 1")));
    }
    let scaling = match keys.optional("rope.scaling.type")?.unwrap_or("none") {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: scaling_factor(keys)? },
        "yarn" => RopeScaling::Yarn(yarn(keys, context_length)?),
        other => {
            let fault = format!("is `{other}`; supported are `none`, `linear` and `yarn`");
            return Err(keys.error("rope.scaling.type", &fault));
        }
    };
    Ok(Rope { kind: keys.arch.rope_kind(), n_rot, base, scaling })
}

fn scaling_factor(keys: &Keys) -> Result<f64> {
    const KEY: &str = "rope.scaling.factor";
    keys.positive_float(KEY)?.map(f64::from).ok_or_else(|| keys.missing(KEY))
}

fn yarn(keys: &Keys, context_length: u32) -> Result<Yarn> {
    const LOG: &str = "rope.scaling.yarn_log_multiplier";
    if let Some(v) = keys.float(LOG)?.filter(|&v| v != 0.0) {
        return Err(keys.error(LOG, &format!("is {v}, which no supported model uses")));
    }
    let original = keys.optional_count("rope.scaling.original_context_length", u32::MAX)?;
    let usual = Yarn::new(scaling_factor(keys)?, original.unwrap_or(context_length));
    let or = |value: Option<f32>, usual| value.map_or(usual, f64::from);
    let attn_factor = or(keys.float("rope.scaling.attn_factor")?, 1.0)
        * or(keys.float("rope.scaling.yarn_attn_factor")?, 1.0);
    Ok(Yarn {
        ext_factor: or(keys.float("rope.scaling.yarn_ext_factor")?, usual.ext_factor),
        attn_factor,
        beta_fast: or(keys.positive_float("rope.scaling.yarn_beta_fast")?, usual.beta_fast),
        beta_slow: or(keys.positive_float("rope.scaling.yarn_beta_slow")?, usual.beta_slow),
        ..usual
    })
}

fn ffn(keys: &Keys, n_block: u32) -> Result<Ffn> {
    const WIDTH: &str = "feed_forward_length";
    let width = |key| keys.count_of_blocks(key, MAX_WIDTH, n_block, |_| true);
    let has_experts = match keys.arch.has_experts() {
        Some(always) => always,
        None => keys.optional::<u32>("expert_count")?.unwrap_or(0) > 0,
    };
    let n_ff = || width(WIDTH)?.ok_or_else(|| keys.missing(WIDTH));
    if !has_experts {
        return Ok(Ffn::Dense { n_ff: n_ff()? });
    }
    let n_expert = keys.count("expert_count", MAX_COUNT)?;
    let n_used = keys.count("expert_used_count", n_expert)?;
    let n_ff_exp = match width("expert_feed_forward_length")? {
        Some(n) => n,
        // Mixtral's experts are as wide as the key says; the Qwen files divide it among them.
        None if keys.arch == Arch::Llama => n_ff()?,
        None => (n_ff()? / n_used).max(1),
    };
    let n_ff_shared = match keys.arch.has_shared_expert() {
        true => Some(match width("expert_shared_feed_forward_length")? {
            Some(n) => n,
            None => n_ff()?,
        }),
        false => None,
    };
    let weights_scale = keys.float("expert_weights_scale")?.filter(|&scale| scale != 0.0);
    Ok(Ffn::Moe {
        n_expert,
        n_used,
        n_ff_exp,
        n_ff_shared,
        weights_scale: weights_scale.unwrap_or(1.0),
    })
}

fn gdn(keys: &Keys) -> Result<Gdn> {
    let gdn = Gdn {
        n_k_heads: keys.count("ssm.group_count", MAX_COUNT)?,
        n_v_heads: keys.count("ssm.time_step_rank", MAX_COUNT)?,
        state_size: keys.count("ssm.state_size", MAX_HEAD_DIM)?,
        conv_kernel: keys.count("ssm.conv_kernel", MAX_CONV_KERNEL)?,
    };
    if !gdn.n_v_heads.is_multiple_of(gdn.n_k_heads) {
        let fault = format!("is {}, no multiple of {} key heads", gdn.n_v_heads, gdn.n_k_heads);
        return Err(keys.error("ssm.time_step_rank", &fault));
    }
    let inner: u32 = keys.require("ssm.inner_size")?;
    if inner != gdn.value_dim() {
        let fault = format!(
            "is {inner}, but {} value heads of {} make {}",
            gdn.n_v_heads,
            gdn.state_size,
            gdn.value_dim()
        );
        return Err(keys.error("ssm.inner_size", &fault));
    }
    Ok(gdn)
}
