//! Random weights in any block format: random bits, with scales that give them a known size.

use std::io::{self, Write};

use engine::quant::{self, BlockType};
use half::{bf16, f16};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

/// Elements drawn at a time; a multiple of every block size.
const CHUNK: u64 = 64 * 1024;

/// Writes `elements` weights, whole blocks of `ty`, of zero mean and standard deviation
/// `deviation`.
///
/// # Errors
/// The sink's, or no scales are known for the type.
pub(super) fn write(
    ty: BlockType,
    elements: u64,
    deviation: f32,
    random: &mut ChaCha8Rng,
    sink: &mut dyn Write,
) -> io::Result<()> {
    let scales = scales(ty).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, format!("no random blocks of type {ty}"))
    })?;
    let unit = if scales.is_empty() { 1.0 } else { deviation / unit_deviation(ty, scales) };
    let mut chunk = Vec::new();
    let mut left = elements;
    while left > 0 {
        let count = left.min(CHUNK);
        left -= count;
        chunk.resize(count as usize / ty.block_elements() * ty.block_bytes(), 0);
        if scales.is_empty() {
            fill_floats(ty, &mut chunk, deviation, random);
        } else {
            fill_blocks(ty, &mut chunk, scales, unit, random);
        }
        sink.write_all(&chunk)?;
    }
    Ok(())
}

/// Where a block has its f16 scales, and how large each is in relation to the first: minima are
/// chosen so that the mean is zero. Floats have none; `None` for formats not known here.
fn scales(ty: BlockType) -> Option<&'static [(usize, f32)]> {
    Some(match ty {
        BlockType::F32 | BlockType::F16 | BlockType::Bf16 => &[],
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => &[(0, 1.0)],
        BlockType::Q4_1 => &[(0, 1.0), (2, -7.5)],
        BlockType::Q5_1 => &[(0, 1.0), (2, -15.5)],
        BlockType::Q2K => &[(80, 1.0), (82, 1.5)],
        BlockType::Q3K => &[(108, 1.0)],
        BlockType::Q4K => &[(0, 1.0), (2, 7.5)],
        BlockType::Q5K => &[(0, 1.0), (2, 15.5)],
        BlockType::Q6K => &[(208, 1.0)],
        BlockType::Iq4Nl
        | BlockType::Iq4Xs
        | BlockType::Iq3S
        | BlockType::Iq3Xxs
        | BlockType::Iq2S
        | BlockType::Iq2Xs
        | BlockType::Iq2Xxs
        | BlockType::Iq1S => &[(0, 1.0)],
        _ => return None,
    })
}

fn fill_floats(ty: BlockType, bytes: &mut [u8], deviation: f32, random: &mut ChaCha8Rng) {
    // A uniform distribution over ±√3 has deviation 1.
    let limit = 3f32.sqrt() * deviation;
    for bytes in bytes.chunks_exact_mut(ty.block_bytes()) {
        let value = random.random_range(-limit..limit);
        match ty {
            BlockType::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            BlockType::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            _ => bytes.copy_from_slice(&value.to_le_bytes()),
        }
    }
}

fn fill_blocks(
    ty: BlockType,
    bytes: &mut [u8],
    scales: &[(usize, f32)],
    unit: f32,
    random: &mut ChaCha8Rng,
) {
    random.fill_bytes(bytes);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // A random sign: the codes of some formats reach further down than up.
        let unit = if block[scales[0].0] & 1 == 0 { unit } else { -unit };
        for &(offset, ratio) in scales {
            let scale = f16::from_f32(unit * ratio);
            block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

/// The standard deviation of random blocks with scales of 1, found by dequantising some.
fn unit_deviation(ty: BlockType, scales: &[(usize, f32)]) -> f32 {
    const BLOCKS: usize = 64;
    let mut bytes = vec![0; BLOCKS * ty.block_bytes()];
    // Always the same blocks, so that the result hangs on nothing else.
    fill_blocks(ty, &mut bytes, scales, 1.0, &mut rand::SeedableRng::seed_from_u64(0));
    let mut values = vec![0.0; BLOCKS * ty.block_elements()];
    quant::dequantise(ty, &bytes, &mut values).expect("whole blocks of a format with scales");
    let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (squares / values.len() as f64).sqrt() as f32
}
