//! A portable LLM inference engine for the hybrid Qwen models.

pub mod error;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod kv;
pub mod model;
pub mod ops;
pub mod quant;
pub mod sample;
pub mod shader;
pub mod text;

pub use error::{Error, Result};
pub use gguf::Gguf;
