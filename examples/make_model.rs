//! Writes a model file of real geometry with random weights, to measure speed and memory:
//!
//! ```sh
//! cargo run --release --example make_model -- --type Q4_K /tmp/synthetic-q4_k.gguf
//! ```

#[path = "../benches/synthetic/mod.rs"]
mod synthetic;

use std::path::PathBuf;

use clap::Parser;
use engine::quant::BlockType;
use synthetic::Geometry;

/// Writes a qwen35moe model of random weights. Defaults are a slice of Qwen3.5-35B-A3B.
#[derive(Parser)]
struct Arguments {
    /// The file to write.
    file: PathBuf,
    /// Type of the matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K.
    #[arg(long = "type", default_value = "Q8_0", value_parser = block_type)]
    ty: BlockType,
    /// Layers, every fourth with softmax attention.
    #[arg(long, default_value_t = Geometry::default().layers)]
    layers: u32,
    /// Vocabulary, at least 640.
    #[arg(long, default_value_t = Geometry::default().vocab)]
    vocab: u32,
    /// Experts a layer, of which 8 are used.
    #[arg(long, default_value_t = Geometry::default().experts)]
    experts: u32,
}

fn block_type(name: &str) -> Result<BlockType, String> {
    let mut all = BlockType::ALL.iter();
    all.find(|ty| ty.name().eq_ignore_ascii_case(name))
        .copied()
        .ok_or_else(|| format!("no block format is called {name}"))
}

fn main() -> engine::Result<()> {
    let Arguments { file, ty, layers, vocab, experts } = Arguments::parse();
    Geometry { ty, layers, vocab, experts, ..Geometry::default() }.write(&file)
}
