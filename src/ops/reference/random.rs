//! Inputs, the same for the same seed.

use crate::{
    ops::Source,
    quant::{BlockType, dequantise, random::random_weights},
};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `n` values in -1 .. 1.
pub(crate) fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// `n` random bytes.
pub(crate) fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A stack of matrices (experts, rows, width) of random weights as in a file.
pub(crate) struct Stored {
    ty: BlockType,
    experts: usize,
    bytes: Vec<u8>,
    /// One an expert, where the type has factors.
    factors: Option<Vec<f32>>,
    /// The weights as numbers.
    pub(crate) values: Vec<f32>,
}

impl Stored {
    pub(crate) fn new(ty: BlockType, seed: u64, [experts, rows, width]: [usize; 3]) -> Self {
        let bytes = random_weights(ty, seed, experts * rows * width);
        let mut values = vec![0.0; experts * rows * width];
        dequantise(ty, &bytes, &mut values).expect("random weights are whole blocks");
        let has_factor = ty.planes().is_some_and(|planes| planes.has_factor);
        let factors = has_factor.then(|| random(!seed, experts));
        for (values, factor) in values.chunks_mut(rows * width).zip(factors.iter().flatten()) {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        Self { ty, experts, bytes, factors, values }
    }

    /// Calls `upload` with the file's bytes, expert by expert.
    pub(crate) fn with<T>(&self, upload: impl FnOnce(Source<'_>) -> T) -> T {
        let size = self.bytes.len() / self.experts;
        let rows = |e: u32| &self.bytes[e as usize * size..][..size];
        upload(Source { ty: self.ty, rows: &rows, factors: self.factors.as_deref(), used: &|_| () })
    }
}
