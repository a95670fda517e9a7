//! One file per op: it validates shapes, chooses the shader variant and the workgroup count, and
//! records. The same stem names shader, op and tests. Every op is tested against a plain f64
//! computation over random inputs and odd sizes, on every device of `testing`.

pub mod attention;
pub mod bias;
pub mod causal_conv;
pub mod embed_rows;
pub mod experts;
mod f16_rows;
pub mod gated_delta;
pub mod gated_norm;
pub mod gated_product;
pub mod host_rows;
pub mod hyper_inject;
pub mod hyper_mix;
pub mod index_scores;
pub mod index_write;
pub mod kv_pages;
pub mod kv_stage;
pub mod kv_write;
#[cfg(test)]
mod listed;
pub(crate) mod matrix;
pub mod ple_gate;
pub mod product;
pub mod qk_rope;
pub mod quantise;
pub(crate) mod reference;
pub mod rms_norm;
pub mod rope;
pub mod routing;
pub mod select_blocks;
pub mod sparse_attention;
mod tensor;
#[cfg(test)]
pub(crate) mod testing;
mod tokens;
pub mod top_blocks;
pub mod top_logits;

pub use matrix::{Matrix, MatrixPart, Source};
pub use routing::Routing;
pub use tensor::Tensor;
pub use tokens::Tokens;

use crate::gpu::Caps;

/// Workgroup size for reductions over rows of `width` values: a power of two within WebGPU's
/// limit, no wider than useful. Software has vectors of about 8, and changes between those of a
/// workgroup at every barrier.
fn reduction_width(width: u32, caps: &Caps) -> u32 {
    if caps.software {
        return 8;
    }
    width.next_power_of_two().clamp(32, 256).min(caps.max_invocations)
}
