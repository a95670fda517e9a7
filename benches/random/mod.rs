//! Random inputs, the same in every run.

#[path = "../synthetic/blocks.rs"]
mod blocks;

use engine::quant::BlockType;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `elements` weights, whole blocks of `ty`, of a standard deviation of 0.02 as a model's.
pub(crate) fn weights(ty: BlockType, elements: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    blocks::write(ty, elements, 0.02, &mut ChaCha8Rng::seed_from_u64(1), &mut bytes)
        .expect("a vector takes all");
    bytes
}

/// `n` values from -1 to 1.
pub(crate) fn values(n: u32) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(n.into());
    (0..n).map(|_| random.random_range(-1.0..1.0)).collect()
}
