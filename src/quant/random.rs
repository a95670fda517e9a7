//! Random valid blocks for tests of kernels and the self-test.

use super::{
    BlockType, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4,
    q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};
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
        BlockType::Q4_0 => (&[q4_0::D], 1.0 / 8.0),
        BlockType::Q4_1 => (&[q4_1::D, q4_1::M], 1.0 / 16.0),
        BlockType::Q5_0 => (&[q5_0::D], 1.0 / 16.0),
        BlockType::Q5_1 => (&[q5_1::D, q5_1::M], 1.0 / 32.0),
        BlockType::Q8_0 => (&[q8_0::D], 1.0 / 127.0),
        BlockType::Q2K => (&[q2_k::D, q2_k::DMIN], 1.0 / 50.0),
        BlockType::Q3K => (&[q3_k::D], 1.0 / 128.0),
        BlockType::Q4K => (&[q4_k::D, q4_k::DMIN], 1.0 / 1000.0),
        BlockType::Q5K => (&[q5_k::D, q5_k::DMIN], 1.0 / 2000.0),
        BlockType::Q6K => (&[q6_k::D], 1.0 / 4000.0),
        BlockType::Iq4Nl => (&[iq4_nl::D], 1.0 / 127.0),
        BlockType::Iq4Xs => (&[iq4_xs::D], 1.0 / 4000.0),
        BlockType::Iq3S => (&[iq3_s::D], 1.0 / 465.0),
        BlockType::Iq3Xxs => (&[iq3_xxs::D], 1.0 / 480.0),
        BlockType::Iq2S => (&[iq2_s::D], 1.0 / 170.0),
        BlockType::Iq2Xs => (&[iq2_xs::D], 1.0 / 170.0),
        BlockType::Iq2Xxs => (&[iq2_xxs::D], 1.0 / 170.0),
        BlockType::Iq1S => (&[iq1_s::D], 1.0 / 17.0),
        BlockType::Iq1M | BlockType::Mxfp4 | BlockType::Nvfp4 => (&[], 0.0),
        _ => unreachable!("no random blocks of {ty}"),
    };
    let length = ty.row_bytes(elements as u64).expect("whole blocks") as usize;
    let mut bytes = random_bytes(!seed, length);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in fields {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value(scale)).to_le_bytes());
        }
        match ty {
            BlockType::Iq1M => iq1_m::set_d(block, f16::from_f32(value(1.0 / 17.0))),
            BlockType::Mxfp4 => block[mxfp4::E] = 116 + block[mxfp4::E] % 10,
            // Of at most 0.5.
            BlockType::Nvfp4 => block[nvfp4::SCALES..nvfp4::QS].iter_mut().for_each(|s| *s %= 49),
            _ => {}
        }
    }
    bytes
}
