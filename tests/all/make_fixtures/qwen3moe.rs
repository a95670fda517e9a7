//! A small `qwen3moe` model of random weights.

use std::{
    io::{self, Write},
    path::Path,
};

use engine::{
    gguf::{Gguf, write::Writer},
    quant::BlockType,
};
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::expected::fixtures;

const ARCHITECTURE: &str = "qwen3moe";
const LAYERS: u32 = 4;
const EMBD: u32 = 64;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
/// Not `EMBD / HEADS`, so that a reader of that default is found out.
const HEAD_DIM: u32 = 32;
const EXPERTS: u32 = 8;
const EXPERTS_USED: u32 = 3;
const EXPERT_FF: u32 = 32;

/// Writes the model, with the vocabulary and chat template of `tiny-qwen3`.
pub(crate) fn write(file: &Path) {
    let vocabulary = Gguf::open(fixtures().join("models/tiny-qwen3.gguf")).expect("a fixture");
    let mut model = Writer::default();
    model
        .set("general.architecture", ARCHITECTURE)
        .set("general.type", "model")
        .set("general.name", "tiny-qwen3moe")
        .set("general.file_type", 1u32);
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 8192),
        ("embedding_length", EMBD),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
        ("expert_count", EXPERTS),
        ("expert_used_count", EXPERTS_USED),
        ("expert_feed_forward_length", EXPERT_FF),
    ] {
        model.set(&format!("{ARCHITECTURE}.{key}"), value);
    }
    model.set(&format!("{ARCHITECTURE}.rope.freq_base"), 1e6f32);
    model.set(&format!("{ARCHITECTURE}.attention.layer_norm_rms_epsilon"), 1e-6f32);
    for (key, value) in vocabulary.metadata().iter().filter(|(k, _)| k.starts_with("tokenizer.")) {
        model.set(key, value.clone());
    }

    let vocab = vocabulary.tensor("token_embd.weight").expect("an embedding").dims[1];
    let tensors = tensors(vocab);
    for tensor in &tensors {
        model.tensor(&tensor.name, tensor.ty, &tensor.shape);
    }
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut left = tensors.iter();
    model
        .write(file, |_, sink| left.next().expect("one call a tensor").write(&mut random, sink))
        .expect("the fixture can be written");
}

struct Tensor {
    name: String,
    ty: BlockType,
    /// The contiguous dimension first.
    shape: Vec<u64>,
    values: Values,
}

/// How the values of a tensor are drawn, so that every part of the model moves the logits by far
/// more than any tolerance.
#[derive(Clone, Copy)]
enum Values {
    /// Embedding rows around a common mean.
    Embedding,
    /// Zero mean; outputs `gain` times as large as inputs.
    Matrix { gain: f64 },
    /// A norm's gains.
    Gamma { mean: f64 },
}

fn tensors(vocab: u64) -> Vec<Tensor> {
    let [embd, head_dim, experts, ff] = [EMBD, HEAD_DIM, EXPERTS, EXPERT_FF].map(u64::from);
    let (q, kv) = (u64::from(HEADS) * head_dim, u64::from(KV_HEADS) * head_dim);
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[u64], values| {
        let f16 = shape.len() > 1 && !name.ends_with("ffn_gate_inp.weight");
        let ty = if f16 { BlockType::F16 } else { BlockType::F32 };
        all.push(Tensor { name, ty, shape: shape.to_vec(), values });
    };
    let matrix = |gain| Values::Matrix { gain };
    let gamma = |mean| Values::Gamma { mean };
    add("output.weight".into(), &[embd, vocab], matrix(2.5));
    add("token_embd.weight".into(), &[embd, vocab], Values::Embedding);
    for i in 0..LAYERS {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        add(name("attn_norm"), &[embd], gamma(1.0));
        add(name("attn_q"), &[embd, q], matrix(1.0));
        add(name("attn_k"), &[embd, kv], matrix(1.0));
        add(name("attn_v"), &[embd, kv], matrix(1.0));
        // Large, for attention that is not flat.
        add(name("attn_q_norm"), &[head_dim], gamma(1.6));
        add(name("attn_k_norm"), &[head_dim], gamma(1.6));
        add(name("attn_output"), &[q, embd], matrix(3.0));
        add(name("ffn_norm"), &[embd], gamma(1.0));
        add(name("ffn_gate_inp"), &[embd, experts], matrix(2.0));
        add(name("ffn_gate_exps"), &[embd, ff, experts], matrix(1.0));
        add(name("ffn_up_exps"), &[embd, ff, experts], matrix(1.0));
        add(name("ffn_down_exps"), &[ff, embd, experts], matrix(3.0));
    }
    add("output_norm.weight".into(), &[embd], gamma(1.0));
    all
}

impl Tensor {
    fn write(&self, random: &mut ChaCha8Rng, sink: &mut dyn Write) -> io::Result<()> {
        let n_in = self.shape[0] as usize;
        let mean: Vec<f64> = match self.values {
            Values::Embedding => (0..n_in).map(|_| 0.2 * normal(random)).collect(),
            Values::Matrix { .. } => vec![0.0; n_in],
            Values::Gamma { mean } => vec![mean; n_in],
        };
        let deviation = match self.values {
            Values::Embedding => 0.7,
            Values::Matrix { gain } => gain / (n_in as f64).sqrt(),
            Values::Gamma { .. } => 0.25,
        };
        for _ in 0..self.shape[1..].iter().product() {
            for mean in &mean {
                let value = mean + deviation * normal(random);
                match self.ty {
                    BlockType::F16 => sink.write_all(&f16::from_f64(value).to_le_bytes())?,
                    _ => sink.write_all(&(value as f32).to_le_bytes())?,
                }
            }
        }
        Ok(())
    }
}

/// Nearly normal, of deviation 1: a sum of uniforms is the same on every machine.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}
