//! Random valid blocks for tests of kernels and the self-test.

use super::{BlockType, iq1_m, mxfp4, nvfp4, reach};
use crate::ops::reference::random_bytes;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `elements` random weights of type `ty`, about -1 to 1: every bit of a block is random but those
/// of its scales, which are small numbers, of either sign where the format has signs.
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
        BlockType::Iq1M | BlockType::Mxfp4 | BlockType::Nvfp4 => (&[], 0.0),
        _ => match reach::scales(ty) {
            Some((fields, times)) => (fields, 1.0 / times),
            None => unreachable!("no random blocks of {ty}"),
        },
    };
    let length = ty.row_bytes(elements as u64).expect("whole blocks") as usize;
    let mut bytes = random_bytes(!seed, length);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in fields {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value(scale)).to_le_bytes());
        }
        match ty {
            BlockType::Iq1M => iq1_m::set_d(block, f16::from_f32(value(1.0 / reach::IQ1))),
            BlockType::Mxfp4 => block[mxfp4::E] = 116 + block[mxfp4::E] % 10,
            // Of at most 0.5.
            BlockType::Nvfp4 => block[nvfp4::SCALES..nvfp4::QS].iter_mut().for_each(|s| *s %= 49),
            _ => {}
        }
    }
    bytes
}
