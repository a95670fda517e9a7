//! Random valid blocks for tests of kernels and the self-test.

use super::{BlockType, q4_0, q4_k, q5_0, q6_k, q8_0};
use crate::ops::reference::random_bytes;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `elements` random weights of type `ty`, about -1 to 1: every bit of a block is random but those
/// of its f16 fields, which are small numbers of either sign.
pub(crate) fn random_weights(ty: BlockType, seed: u64, elements: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut value = |scale: f32| rng.random_range(-1.0..1.0_f32) * scale;
    let (fields, scale): (&[usize], f32) = match ty {
        BlockType::F32 => return (0..elements).flat_map(|_| value(1.0).to_le_bytes()).collect(),
        BlockType::F16 => {
            return (0..elements).flat_map(|_| f16::from_f32(value(1.0)).to_le_bytes()).collect();
        }
        BlockType::Bf16 => {
            return (0..elements).flat_map(|_| bf16::from_f32(value(1.0)).to_le_bytes()).collect();
        }
        BlockType::Q4_0 => (&[q4_0::D], 1.0 / 8.0),
        BlockType::Q5_0 => (&[q5_0::D], 1.0 / 16.0),
        BlockType::Q8_0 => (&[q8_0::D], 1.0 / 127.0),
        BlockType::Q4K => (&[q4_k::D, q4_k::DMIN], 1.0 / 1000.0),
        BlockType::Q6K => (&[q6_k::D], 1.0 / 4000.0),
        _ => unreachable!("no random blocks of {ty}"),
    };
    let length = ty.row_bytes(elements as u64).expect("whole blocks") as usize;
    let mut bytes = random_bytes(!seed, length);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in fields {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value(scale)).to_le_bytes());
        }
    }
    bytes
}
