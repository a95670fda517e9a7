//! The tensors of a model, spec/architectures.md 3 and 4.

use std::{
    array,
    io::{self, Write},
};

use engine::{plan::Weights, quant::BlockType};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{ATTENTION_INTERVAL, CONV_KERNEL, Geometry, blocks};

/// One tensor to be written.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) ty: BlockType,
    /// The contiguous dimension first.
    pub(super) shape: Vec<u64>,
    values: Values,
}

/// How the values of a tensor are drawn.
#[derive(Clone, Copy)]
enum Values {
    /// Zero mean; outputs about as large as inputs.
    Matrix,
    /// Uniform F32 values.
    Between(f32, f32),
}

impl Geometry {
    /// All tensors, in file order.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let [embd, vocab] = [self.embd, self.vocab].map(u64::from);
        let mut list = List::new(self);
        list.matrix("token_embd", &[embd, vocab]);
        list.matrix("output", &[embd, vocab]);
        match &self.streams {
            Some(streams) => streams.globals(self.embd, &mut list),
            None => list.norm("output_norm", embd),
        }
        for i in 0..self.layers {
            list.prefix = format!("blk.{i}.");
            match &self.streams {
                Some(streams) => streams.layer(self, i, &mut list),
                None => {
                    list.norm("attn_norm", embd);
                    list.norm("post_attention_norm", embd);
                }
            }
            if (i + 1).is_multiple_of(ATTENTION_INTERVAL) {
                self.attention(&mut list);
            } else {
                self.delta_net(&mut list);
            }
            self.feed_forward(&mut list);
        }
        list.tensors
    }

    fn attention(&self, list: &mut List) {
        let [embd, head_dim] = [self.embd, self.head_dim].map(u64::from);
        let (q, kv) = (u64::from(self.heads) * head_dim, u64::from(self.kv_heads) * head_dim);
        list.matrix("attn_q", &[embd, 2 * q]);
        list.matrix("attn_k", &[embd, kv]);
        list.matrix("attn_v", &[embd, kv]);
        list.norm("attn_q_norm", head_dim);
        list.norm("attn_k_norm", head_dim);
        list.matrix("attn_output", &[q, embd]);
    }

    fn delta_net(&self, list: &mut List) {
        let [embd, heads, state_size] =
            [self.embd, self.value_heads, self.state_size].map(u64::from);
        let value_dim = heads * state_size;
        let conv_dim = 2 * u64::from(self.key_heads) * state_size + value_dim;
        list.matrix("attn_qkv", &[embd, conv_dim]);
        list.matrix("attn_gate", &[embd, value_dim]);
        list.matrix("ssm_alpha", &[embd, heads]);
        list.matrix("ssm_beta", &[embd, heads]);
        list.float("ssm_conv1d.weight", &[u64::from(CONV_KERNEL), conv_dim], -0.5, 0.5);
        // Decays from nearly none to a factor of e^-3 a token.
        list.float("ssm_a", &[heads], -8.0, -0.3);
        list.float("ssm_dt.bias", &[heads], -4.6, -0.7);
        list.norm("ssm_norm", state_size);
        list.matrix("ssm_out", &[value_dim, embd]);
    }

    fn feed_forward(&self, list: &mut List) {
        let [embd, experts, ff] = [self.embd, self.experts, self.expert_ff].map(u64::from);
        let spread = 3.0 / (embd as f32).sqrt();
        list.float("ffn_gate_inp.weight", &[embd, experts], -spread, spread);
        list.matrix("ffn_gate_exps", &[embd, ff, experts]);
        list.matrix("ffn_up_exps", &[embd, ff, experts]);
        list.matrix("ffn_down_exps", &[ff, embd, experts]);
        list.float("ffn_gate_inp_shexp.weight", &[embd, 1], -spread, spread);
        list.matrix("ffn_gate_shexp", &[embd, ff]);
        list.matrix("ffn_up_shexp", &[embd, ff]);
        list.matrix("ffn_down_shexp", &[ff, embd]);
    }
}

/// The tensors so far, and what the next ones have in common.
pub(super) struct List {
    weights: Weights,
    layers: u32,
    prefix: String,
    tensors: Vec<Tensor>,
}

impl List {
    fn new(of: &Geometry) -> Self {
        let (weights, layers) = (of.weights, of.layers);
        Self { weights, layers, prefix: String::new(), tensors: Vec::new() }
    }

    fn add(&mut self, name: &str, ty: BlockType, shape: &[u64], values: Values) {
        let name = format!("{}{name}", self.prefix);
        self.tensors.push(Tensor { name, ty, shape: shape.to_vec(), values });
    }

    pub(super) fn matrix(&mut self, name: &str, shape: &[u64]) {
        let name = format!("{name}.weight");
        let ty = match self.weights {
            Weights::Type(ty) if shape[0].is_multiple_of(ty.block_elements() as u64) => ty,
            Weights::Type(BlockType::Q4K) => BlockType::Q4_0,
            Weights::Type(_) => BlockType::Q8_0,
            mix => {
                let dims = array::from_fn(|i| shape.get(i).copied().unwrap_or(1));
                mix.ty(&format!("{}{name}", self.prefix), &dims, self.layers)
            }
        };
        self.add(&name, ty, shape, Values::Matrix);
    }

    pub(super) fn float(&mut self, name: &str, shape: &[u64], from: f32, to: f32) {
        self.add(name, BlockType::F32, shape, Values::Between(from, to));
    }

    pub(super) fn norm(&mut self, name: &str, size: u64) {
        self.float(&format!("{name}.weight"), &[size], 0.8, 1.2);
    }
}

impl Tensor {
    /// Writes all values, row after row.
    pub(super) fn write(&self, random: &mut ChaCha8Rng, sink: &mut dyn Write) -> io::Result<()> {
        let elements: u64 = self.shape.iter().product();
        match self.values {
            Values::Matrix => {
                let deviation = 1.0 / (self.shape[0] as f32).sqrt();
                blocks::write(self.ty, elements, deviation, random, sink)
            }
            Values::Between(from, to) => (0..elements)
                .try_for_each(|_| sink.write_all(&random.random_range(from..to).to_le_bytes())),
        }
    }
}
