//! Model files of real geometry with random weights: for speed and memory, not for meaning.

mod blocks;
mod check;
mod qwen4exp;
mod tensors;

use std::path::Path;

use engine::{
    Error, Result,
    gguf::{Gguf, Strings, write::Writer},
    plan::Weights,
    quant::BlockType,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub(crate) use qwen4exp::Streams;

/// The sizes of a `qwen35moe` or `qwen4exp` model and the types of its matrices. The default is a
/// slice of Qwen3.5-35B-A3B: its layers, but four of them, with 16 of 256 experts and a small
/// vocabulary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Types of all matrices but router, convolution and the shared expert's gate (F32). Rows that
    /// are no whole blocks take a type with smaller blocks, as other writers of files do it.
    pub(crate) weights: Weights,
    /// Layers; every fourth is softmax attention, the others are gated delta net.
    pub(crate) layers: u32,
    /// At least that of the fixture whose tokenizer is taken, 640.
    pub(crate) vocab: u32,
    pub(crate) embd: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) n_rot: u32,
    /// Heads of q and k in the gated delta net.
    pub(crate) key_heads: u32,
    /// Heads of v in the gated delta net.
    pub(crate) value_heads: u32,
    /// Size of both kinds of heads.
    pub(crate) state_size: u32,
    pub(crate) experts: u32,
    pub(crate) experts_used: u32,
    /// Width of each expert and of the shared one.
    pub(crate) expert_ff: u32,
    /// What makes it a `qwen4exp` model.
    pub(crate) streams: Option<Streams>,
}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            weights: Weights::Type(BlockType::Q8_0),
            layers: 4,
            vocab: 8192,
            embd: 2048,
            heads: 16,
            kv_heads: 2,
            head_dim: 256,
            n_rot: 64,
            key_heads: 16,
            value_heads: 32,
            state_size: 128,
            experts: 16,
            experts_used: 8,
            expert_ff: 512,
            streams: None,
        }
    }
}

/// Taps of the causal convolution.
const CONV_KERNEL: u32 = 4;
/// One softmax attention layer in this many.
const ATTENTION_INTERVAL: u32 = 4;

impl Geometry {
    fn architecture(&self) -> &'static str {
        if self.streams.is_some() { "qwen4exp" } else { "qwen35moe" }
    }

    /// Writes the model, a block at a time: it may be larger than memory. The same geometry gives
    /// the same bytes.
    ///
    /// # Errors
    /// The file cannot be written, or [`Self::check`] finds a fault.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        self.check().map_err(Error::Usage)?;
        let mut model = Writer::default();
        self.describe(&mut model);
        self.add_tokenizer(&mut model)?;
        let tensors = self.tensors();
        for tensor in &tensors {
            model.tensor(&tensor.name, tensor.ty, &tensor.shape);
        }
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut left = tensors.iter();
        model.write(file, |info, sink| match left.next() {
            Some(tensor) => tensor.write(&mut random, sink),
            None => unreachable!("{} is not in the list", info.name),
        })
    }

    fn describe(&self, model: &mut Writer) {
        let arch = self.architecture();
        model.set("general.architecture", arch).set("general.name", "synthetic");
        for (key, value) in [
            ("block_count", self.layers),
            ("context_length", 262_144),
            ("embedding_length", self.embd),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.n_rot),
            ("expert_count", self.experts),
            ("expert_used_count", self.experts_used),
            ("expert_feed_forward_length", self.expert_ff),
            ("expert_shared_feed_forward_length", self.expert_ff),
            ("ssm.conv_kernel", CONV_KERNEL),
            ("ssm.state_size", self.state_size),
            ("ssm.group_count", self.key_heads),
            ("ssm.time_step_rank", self.value_heads),
            ("ssm.inner_size", self.value_heads * self.state_size),
            ("full_attention_interval", ATTENTION_INTERVAL),
        ] {
            model.set(&format!("{arch}.{key}"), value);
        }
        model.set(&format!("{arch}.rope.freq_base"), 1e7f32);
        model.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6f32);
        // Time, height and width take turns; for text all three are the position.
        let third = (self.n_rot / 2).div_ceil(3) as i32;
        let sections = [third, third, (self.n_rot / 2) as i32 - 2 * third, 0];
        model.set(&format!("{arch}.rope.dimension_sections"), &sections[..]);
        if let Some(streams) = &self.streams {
            streams.describe(self.layers, model);
        }
    }

    /// The tokenizer of a fixture, padded to the vocabulary with tokens that no text produces.
    fn add_tokenizer(&self, model: &mut Writer) -> Result<()> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        const UNUSED: i32 = 5;
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-qwen35moe.gguf");
        let fixture = Gguf::open(fixture)?;
        for (key, value) in fixture.metadata().iter().filter(|(k, _)| k.starts_with("tokenizer.")) {
            model.set(key, value.clone());
        }
        let mut tokens = fixture.metadata().require::<&Strings>(TOKENS)?.clone();
        let mut types = fixture.metadata().require::<Vec<i32>>(TYPES)?;
        for i in tokens.len()..self.vocab as usize {
            tokens.push(format!("[PAD{i}]").as_bytes());
            types.push(UNUSED);
        }
        model.set(TOKENS, tokens).set(TYPES, &types[..]);
        Ok(())
    }
}
