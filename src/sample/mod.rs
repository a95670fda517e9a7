//! From logits to a token: the sampler chain of spec/cli-and-server.md 3.
//!
//! ```text
//! logits → bias → penalties → top_n_sigma → top_k → typical → top_p → min_p → temperature → draw
//! ```
//!
//! Each request owns one [`Sampler`]: its parameters, its penalty window and its random numbers.
//! The same seed and logits give the same tokens, whatever else runs.

mod candidates;
mod params;
mod penalty;
mod recommended;
mod sampler;

pub use params::{PartialSampling, SamplingParams};
pub use sampler::{Sampler, argmax};
