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
    let scales = &scales(ty).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, format!("no random blocks of type {ty}"))
    })?;
    let unit = match scales {
        Scales::None => 1.0,
        _ => deviation / unit_deviation(ty, scales),
    };
    let mut chunk = Vec::new();
    let mut left = elements;
    while left > 0 {
        let count = left.min(CHUNK);
        left -= count;
        chunk.resize(count as usize / ty.block_elements() * ty.block_bytes(), 0);
        match scales {
            Scales::None => fill_floats(ty, &mut chunk, deviation, random),
            _ => fill_blocks(ty, &mut chunk, scales, unit, random),
        }
        sink.write_all(&chunk)?;
    }
    Ok(())
}

/// Where a block has its scales.
enum Scales {
    /// Floats have none.
    None,
    /// f16 numbers, and how large each is in relation to the first: minima are chosen so that the
    /// mean is zero.
    Halves(&'static [(usize, f32)]),
    /// An f16 in the highest four bits of four u16, from here on.
    Quarters(usize),
    /// The byte e of a power of two, 2^(e - 128).
    Exponent(usize),
    /// Bytes of 4 bits exponent and 3 bits mantissa.
    Small(std::ops::Range<usize>),
}

/// `None` for formats not known here.
fn scales(ty: BlockType) -> Option<Scales> {
    Some(match ty {
        BlockType::F32 | BlockType::F16 | BlockType::Bf16 => Scales::None,
        BlockType::Q4_1 => Scales::Halves(&[(0, 1.0), (2, -7.5)]),
        BlockType::Q5_1 => Scales::Halves(&[(0, 1.0), (2, -15.5)]),
        BlockType::Q2K => Scales::Halves(&[(80, 1.0), (82, 1.5)]),
        BlockType::Q3K => Scales::Halves(&[(108, 1.0)]),
        BlockType::Q4K => Scales::Halves(&[(0, 1.0), (2, 7.5)]),
        BlockType::Q5K => Scales::Halves(&[(0, 1.0), (2, 15.5)]),
        BlockType::Q6K => Scales::Halves(&[(208, 1.0)]),
        BlockType::Q8_0
        | BlockType::Q4_0
        | BlockType::Q5_0
        | BlockType::Iq4Nl
        | BlockType::Iq4Xs
        | BlockType::Iq3S
        | BlockType::Iq3Xxs
        | BlockType::Iq2S
        | BlockType::Iq2Xs
        | BlockType::Iq2Xxs
        | BlockType::Iq1S => Scales::Halves(&[(0, 1.0)]),
        BlockType::Iq1M => Scales::Quarters(48),
        BlockType::Mxfp4 => Scales::Exponent(0),
        BlockType::Nvfp4 => Scales::Small(0..4),
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
    scales: &Scales,
    unit: f32,
    random: &mut ChaCha8Rng,
) {
    random.fill_bytes(bytes);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // A random sign: the codes of some formats reach further down than up.
        let signed = if random.random() { unit } else { -unit };
        match scales {
            Scales::None => {}
            Scales::Halves(fields) => {
                for &(offset, ratio) in *fields {
                    let scale = f16::from_f32(signed * ratio);
                    block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            Scales::Quarters(offset) => {
                let scale = f16::from_f32(signed).to_bits();
                for k in 0..4 {
                    let byte = &mut block[offset + 2 * k + 1];
                    *byte = *byte & 15 | ((scale >> (4 * k)) as u8 & 15) << 4;
                }
            }
            Scales::Exponent(offset) => {
                block[*offset] = one_of(unit, 254, |e| (f32::from(e) - 128.0).exp2(), random);
            }
            Scales::Small(range) => {
                for byte in &mut block[range.clone()] {
                    *byte = one_of(unit, 126, small, random);
                }
            }
        }
    }
}

/// One of the two codes up to `last` whose values, ascending, are nearest to `wanted`, at random so that its square
/// is the mean square.
fn one_of(wanted: f32, last: u8, value: impl Fn(u8) -> f32, random: &mut ChaCha8Rng) -> u8 {
    let above = (1..=last).find(|&code| value(code) > wanted).unwrap_or(last);
    let [low, high] = [above - 1, above].map(|code| value(code).powi(2));
    let share = ((wanted * wanted - low) / (high - low)).clamp(0.0, 1.0);
    above - u8::from(random.random::<f32>() >= share)
}

/// A float of 4 bits exponent and 3 bits mantissa.
fn small(code: u8) -> f32 {
    let (e, m) = (i32::from(code >> 3), f32::from(code & 7));
    if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) }
}

/// The standard deviation of random blocks with scales of 1, found by dequantising some.
fn unit_deviation(ty: BlockType, scales: &Scales) -> f32 {
    const BLOCKS: usize = 64;
    let mut bytes = vec![0; BLOCKS * ty.block_bytes()];
    // Always the same blocks, so that the result hangs on nothing else.
    fill_blocks(ty, &mut bytes, scales, 1.0, &mut rand::SeedableRng::seed_from_u64(0));
    let mut values = vec![0.0; BLOCKS * ty.block_elements()];
    quant::dequantise(ty, &bytes, &mut values).expect("whole blocks of a format with scales");
    let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (squares / values.len() as f64).sqrt() as f32
}
