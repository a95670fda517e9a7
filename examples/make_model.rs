//! Writes a model file of real geometry with random weights, to measure speed and memory:
//!
//! ```sh
//! cargo run --release --example make_model -- --model flash-next --type Q4_K /tmp/synthetic-q4_k.gguf
//! ```

#[path = "../benches/synthetic/mod.rs"]
mod synthetic;

use std::path::PathBuf;

use clap::{CommandFactory, Parser, ValueEnum, error::ErrorKind};
use engine::plan::Weights;
use synthetic::{Geometry, Streams};

/// Writes a model of random weights.
#[derive(Parser)]
struct Arguments {
    /// The file to write.
    file: PathBuf,
    /// The model whose slice it is.
    #[arg(long, value_enum, default_value_t = Model::A3b)]
    model: Model,
    /// Type of the matrices, any that runs (F32, Q8_0, Q4_K, MXFP4 …), or the mix Q4_K_M as
    /// llama.cpp's quantiser lays it out
    #[arg(long = "type", default_value = "Q8_0")]
    weights: Weights,
    #[command(flatten)]
    shape: Shape,
}

/// Sizes other than the model's slice has.
#[derive(clap::Args)]
struct Shape {
    /// Layers, at least 4: every fourth is softmax attention.
    #[arg(long)]
    layers: Option<u32>,
    /// Vocabulary, at least 640.
    #[arg(long)]
    vocab: Option<u32>,
    /// Width of the residual stream.
    #[arg(long)]
    embd: Option<u32>,
    /// Query heads of softmax attention.
    #[arg(long)]
    heads: Option<u32>,
    /// Heads of its keys and values.
    #[arg(long)]
    kv_heads: Option<u32>,
    /// Width of each of these heads.
    #[arg(long)]
    head_dim: Option<u32>,
    /// Of that, values that rotate with the position.
    #[arg(long)]
    rot: Option<u32>,
    /// Heads of queries and keys in the gated delta net.
    #[arg(long)]
    key_heads: Option<u32>,
    /// Heads of its values.
    #[arg(long)]
    value_heads: Option<u32>,
    /// Width of each of these heads.
    #[arg(long)]
    state_size: Option<u32>,
    /// Experts a layer.
    #[arg(long)]
    experts: Option<u32>,
    /// Experts a token uses.
    #[arg(long)]
    experts_used: Option<u32>,
    /// Width of each expert and of the shared one.
    #[arg(long)]
    expert_ff: Option<u32>,
}

impl Shape {
    /// `model` with these sizes.
    fn of(&self, model: Geometry) -> Geometry {
        Geometry {
            layers: self.layers.unwrap_or(model.layers),
            vocab: self.vocab.unwrap_or(model.vocab),
            embd: self.embd.unwrap_or(model.embd),
            heads: self.heads.unwrap_or(model.heads),
            kv_heads: self.kv_heads.unwrap_or(model.kv_heads),
            head_dim: self.head_dim.unwrap_or(model.head_dim),
            n_rot: self.rot.unwrap_or(model.n_rot),
            key_heads: self.key_heads.unwrap_or(model.key_heads),
            value_heads: self.value_heads.unwrap_or(model.value_heads),
            state_size: self.state_size.unwrap_or(model.state_size),
            experts: self.experts.unwrap_or(model.experts),
            experts_used: self.experts_used.unwrap_or(model.experts_used),
            expert_ff: self.expert_ff.unwrap_or(model.expert_ff),
            ..model
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// Qwen3.5-35B-A3B.
    #[value(name = "35b-a3b")]
    A3b,
    /// Qwen3.8-Flash-Next.
    FlashNext,
}

fn main() -> engine::Result<()> {
    let Arguments { file, model, weights, shape } = Arguments::parse();
    let geometry = match model {
        Model::A3b => Geometry::default(),
        Model::FlashNext => Geometry {
            embd: 2560,
            heads: 24,
            value_heads: 48,
            experts_used: 10,
            expert_ff: 640,
            streams: Some(Streams::default()),
            ..Geometry::default()
        },
    };
    let geometry = shape.of(Geometry { weights, ..geometry });
    if let Err(fault) = geometry.check() {
        Arguments::command().error(ErrorKind::ValueValidation, fault).exit();
    }
    geometry.write(&file)
}
