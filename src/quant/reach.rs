//! How large the weights of blocks can be, told from their scales alone: where products are of f16,
//! weights and what they are multiplied with must not exceed it, nor may sums exceed f32.

use super::{
    BlockType, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4,
    q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};
use half::{bf16, f16};

/// Where the blocks of a type have their f16 scales, and about how many times the sum of these a
/// weight can be. None of types whose scales are something else, or that have none.
pub(super) const fn scales(ty: BlockType) -> Option<(&'static [usize], f32)> {
    Some(match ty {
        BlockType::Q4_0 => (&[q4_0::D], 8.0),
        BlockType::Q4_1 => (&[q4_1::D, q4_1::M], 16.0),
        BlockType::Q5_0 => (&[q5_0::D], 16.0),
        BlockType::Q5_1 => (&[q5_1::D, q5_1::M], 32.0),
        BlockType::Q8_0 => (&[q8_0::D], 127.0),
        BlockType::Q2K => (&[q2_k::D, q2_k::DMIN], 50.0),
        BlockType::Q3K => (&[q3_k::D], 128.0),
        BlockType::Q4K => (&[q4_k::D, q4_k::DMIN], 1000.0),
        BlockType::Q5K => (&[q5_k::D, q5_k::DMIN], 2000.0),
        BlockType::Q6K => (&[q6_k::D], 4000.0),
        BlockType::Iq4Nl => (&[iq4_nl::D], 127.0),
        BlockType::Iq4Xs => (&[iq4_xs::D], 4000.0),
        BlockType::Iq3S => (&[iq3_s::D], 465.0),
        BlockType::Iq3Xxs => (&[iq3_xxs::D], 480.0),
        BlockType::Iq2S => (&[iq2_s::D], 170.0),
        BlockType::Iq2Xs => (&[iq2_xs::D], 170.0),
        BlockType::Iq2Xxs => (&[iq2_xxs::D], 170.0),
        BlockType::Iq1S => (&[iq1_s::D], IQ1),
        _ => return None,
    })
}

/// Times d a weight of IQ1_S and IQ1_M can be, about.
pub(super) const IQ1: f32 = 17.0;
/// No weight exceeds these numbers by more.
const ABOUT: f32 = 1.05;

/// A bound of the sizes of the weights in `row`, whole blocks of type `ty`, times `factor`; infinite
/// if there are NaNs.
pub(crate) fn reach(ty: BlockType, row: &[u8], factor: f32) -> f32 {
    let blocks = || row.chunks_exact(ty.block_bytes());
    // The largest of some 16-bit floats without their signs, compared as whole numbers.
    let most = |bits: &dyn Fn(&[u8]) -> u16| blocks().map(|b| bits(b) & 0x7fff).max().unwrap_or(0);
    let at = |at: usize| move |block: &[u8]| u16::from_le_bytes([block[at], block[at + 1]]);
    let bound = match (ty, scales(ty)) {
        (_, Some((fields, times))) => {
            times
                * fields.iter().map(|field| f16::from_bits(most(&at(*field))).to_f32()).sum::<f32>()
        }
        (BlockType::F16, _) => f16::from_bits(most(&at(0))).to_f32(),
        (BlockType::Bf16, _) => bf16::from_bits(most(&at(0))).to_f32(),
        (BlockType::Iq1M, _) => IQ1 * f16::from_bits(most(&|b| iq1_m::d(b).to_bits())).to_f32(),
        (BlockType::Mxfp4, _) => {
            12.0 * mxfp4::scale(blocks().map(|b| b[mxfp4::E]).max().unwrap_or(0))
        }
        (BlockType::Nvfp4, _) => {
            let scales = blocks().flat_map(|b| &b[nvfp4::SCALES..nvfp4::QS]);
            6.0 * scales.map(|bits| nvfp4::scale(*bits)).fold(0.0, f32::max)
        }
        _ => f32::INFINITY,
    };
    let bound = ABOUT * bound * factor.abs();
    if bound.is_nan() { f32::INFINITY } else { bound }
}

/// What is wrong with `row`, whole blocks of type `ty`, where kernels cannot compute with its weights.
pub(crate) fn excess(ty: BlockType, row: &[u8]) -> Option<String> {
    let e = if ty == BlockType::Mxfp4 { mxfp4::excess(row)? } else { return None };
    Some(format!("a block of {ty} has exponent {e}, too large for sums of its weights in f32"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{dequantise, random::random_weights};

    #[test]
    fn no_weight_is_out_of_reach_and_reach_is_not_far_away() {
        for ty in BlockType::ALL.iter().copied().filter(|ty| ty.runs_on_gpu()) {
            if ty == BlockType::F32 {
                continue;
            }
            for seed in 0..20 {
                let bytes = random_weights(ty, seed, 512);
                let mut values = [0.0; 512];
                dequantise(ty, &bytes, &mut values).unwrap();
                let most = values.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
                let reach = reach(ty, &bytes, 2.0);
                assert!(2.0 * most <= reach && reach < 40.0 * most, "{ty}: {most}, {reach}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_out_of_reach() {
        for (ty, at, bits) in [
            (BlockType::F16, 2, 0xfe00_u16),
            (BlockType::Bf16, 2, 0x7fc0),
            (BlockType::Q4K, 2, 0xfc01),
            (BlockType::Q8_0, 34, 0x7c00),
            (BlockType::Mxfp4, 0, 0xffff),
        ] {
            let mut bytes = random_weights(ty, 1, 256);
            assert!(reach(ty, &bytes, 1.0) < 100.0);
            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            assert_eq!(reach(ty, &bytes, 1.0), f32::INFINITY, "{ty}");
        }
    }
}
