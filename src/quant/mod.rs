//! Block formats of GGUF tensors: sizes, and per format a file with its layout and its reference
//! dequantisation. No GPU types here; the shaders read the same layouts.

mod block_type;
mod blocks;

mod bf16;
mod f16;
mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod planes;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod reach;
mod tables;

pub(crate) mod random;
#[cfg(test)]
mod tests;

pub use block_type::BlockType;
pub use planes::Planes;
pub(crate) use reach::{excess, reach};

use crate::{Error, Result};
use blocks::each_block;

/// Dequantises whole blocks of type `ty` to f32; `out` holds exactly the elements of `bytes`.
///
/// This is the reference the GPU kernels are tested against: it multiplies in the order of the
/// format's definition, so results are exact to the bit (spec/gguf.md 3).
///
/// # Errors
/// The type has no dequantiser, or the two lengths do not belong together.
pub fn dequantise(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if ty.row_bytes(out.len() as u64) != Some(bytes.len() as u64) {
        return Err(Error::Model(format!(
            "{} bytes of {ty} do not hold {} elements",
            bytes.len(),
            out.len()
        )));
    }
    match ty {
        BlockType::F32 => each_block(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| {
            y[0] = f32::from_le_bytes(*b);
        }),
        BlockType::F16 => each_block(bytes, out, f16::dequantise),
        BlockType::Bf16 => each_block(bytes, out, bf16::dequantise),
        BlockType::Q4_0 => each_block(bytes, out, q4_0::dequantise),
        BlockType::Q4_1 => each_block(bytes, out, q4_1::dequantise),
        BlockType::Q5_0 => each_block(bytes, out, q5_0::dequantise),
        BlockType::Q5_1 => each_block(bytes, out, q5_1::dequantise),
        BlockType::Q8_0 => each_block(bytes, out, q8_0::dequantise),
        BlockType::Q2K => each_block(bytes, out, q2_k::dequantise),
        BlockType::Q3K => each_block(bytes, out, q3_k::dequantise),
        BlockType::Q4K => each_block(bytes, out, q4_k::dequantise),
        BlockType::Q5K => each_block(bytes, out, q5_k::dequantise),
        BlockType::Q6K => each_block(bytes, out, q6_k::dequantise),
        BlockType::Iq4Nl => each_block(bytes, out, iq4_nl::dequantise),
        BlockType::Iq4Xs => each_block(bytes, out, iq4_xs::dequantise),
        BlockType::Iq3S => each_block(bytes, out, iq3_s::dequantise),
        BlockType::Iq3Xxs => each_block(bytes, out, iq3_xxs::dequantise),
        BlockType::Iq2S => each_block(bytes, out, iq2_s::dequantise),
        BlockType::Iq2Xs => each_block(bytes, out, iq2_xs::dequantise),
        BlockType::Iq2Xxs => each_block(bytes, out, iq2_xxs::dequantise),
        BlockType::Iq1S => each_block(bytes, out, iq1_s::dequantise),
        BlockType::Iq1M => each_block(bytes, out, iq1_m::dequantise),
        BlockType::Nvfp4 => each_block(bytes, out, nvfp4::dequantise),
        BlockType::Mxfp4 => each_block(bytes, out, mxfp4::dequantise),
        _ => return Err(Error::Model(format!("tensor type {ty} cannot be dequantised"))),
    }
    Ok(())
}
