//! Writes a model file of real geometry with random weights, to measure speed and memory:
//!
//! ```sh
//! cargo run --release --example make_model -- --model flash-next --type Q4_K /tmp/synthetic-q4_k.gguf
//! ```

#[path = "../benches/synthetic/mod.rs"]
mod synthetic;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
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
    /// Layers, every fourth with softmax attention.
    #[arg(long, default_value_t = Geometry::default().layers)]
    layers: u32,
    /// Vocabulary, at least 640.
    #[arg(long, default_value_t = Geometry::default().vocab)]
    vocab: u32,
    /// Experts a layer.
    #[arg(long, default_value_t = Geometry::default().experts)]
    experts: u32,
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
    let Arguments { file, model, weights, layers, vocab, experts } = Arguments::parse();
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
    Geometry { weights, layers, vocab, experts, ..geometry }.write(&file)
}
