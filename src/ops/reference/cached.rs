//! What the KV cache holds in its types ([`KvType`]), rows of `row` values.

use crate::kv::KvType;
use half::{bf16, f16};

/// Values of a block with a scale of its own.
pub(crate) const BLOCK: usize = 32;

/// The bytes of `values` in a cache of type `ty`; a last tile is filled up with zeros.
pub(crate) fn cached(ty: KvType, values: &[f32], row: usize) -> Vec<u8> {
    let finite = |v: &f32| v.clamp(-65504.0, 65504.0);
    match ty {
        KvType::F32 => bytemuck::cast_slice(values).to_vec(),
        KvType::F16 => values.iter().flat_map(|v| f16::from_f32(finite(v)).to_le_bytes()).collect(),
        KvType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        KvType::Q8_0 => tiles(
            values,
            row,
            |extreme| extreme.abs() / 127.0,
            |steps| {
                let byte = |q: &f32| (q.round_ties_even().clamp(-127.0, 127.0) + 128.0) as u8;
                steps.iter().map(byte).collect()
            },
        ),
        KvType::Q4_0 => tiles(
            values,
            row,
            |extreme| extreme / -8.0,
            |steps| {
                let nibble = |q: f32| (q + 8.5).floor().clamp(0.0, 15.0) as u8;
                steps.chunks_exact(2).map(|q| nibble(q[0]) | nibble(q[1]) << 4).collect()
            },
        ),
    }
}

/// Tiles of rows in blocks: a block's scale follows from its value of the largest magnitude, its
/// quants from its values in units of the scale.
fn tiles(
    values: &[f32],
    row: usize,
    scale: impl Fn(f32) -> f32,
    quants: impl Fn(&[f32]) -> Vec<u8>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let size = KvType::TILE as usize * row;
    for tile in values.chunks(size) {
        let mut scales = Vec::new();
        let whole: Vec<f32> = tile.iter().copied().chain(vec![0.0; size - tile.len()]).collect();
        for block in whole.chunks(BLOCK) {
            let scale = scale(extreme(block)).clamp(-65504.0, 65504.0);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            bytes.extend(quants(&block.iter().map(|v| v * inverse).collect::<Vec<_>>()));
            scales.extend(f16::from_f32(scale).to_le_bytes());
        }
        bytes.extend(scales);
    }
    bytes
}

/// The value of the largest magnitude, or NaN where there is one.
fn extreme(block: &[f32]) -> f32 {
    block.iter().fold(0.0, |a: f32, b| if b.is_nan() || b.abs() > a.abs() { *b } else { a })
}

/// The values behind the bytes of a cache of type `ty`: of all rows, in quantised types of all
/// whole tiles.
pub(crate) fn uncached(ty: KvType, bytes: &[u8], row: usize) -> Vec<f32> {
    let steps = |quants: &[u8]| -> Vec<f32> {
        if ty == KvType::Q8_0 {
            return quants.iter().map(|q| f32::from(*q) - 128.0).collect();
        }
        quants.iter().flat_map(|q| [q & 15, q >> 4]).map(|n| f32::from(n) - 8.0).collect()
    };
    match ty {
        KvType::F32 => bytemuck::pod_collect_to_vec(bytes),
        KvType::F16 => halves(bytes).map(|h| f16::from_le_bytes(h).to_f32()).collect(),
        KvType::Bf16 => halves(bytes).map(|h| bf16::from_le_bytes(h).to_f32()).collect(),
        KvType::Q8_0 | KvType::Q4_0 => {
            let parts = ty.parts(u64::from(KvType::TILE) * row as u64);
            let [quants, scales] = parts.map(|bytes| bytes as usize);
            let tile = |tile: &[u8]| {
                let (quants, scales) = tile.split_at(quants);
                let scales: Vec<f16> = halves(scales).map(f16::from_le_bytes).collect();
                let value = |(i, step): (usize, f32)| scales[i / BLOCK].to_f32() * step;
                steps(quants).into_iter().enumerate().map(value).collect::<Vec<_>>()
            };
            bytes.chunks_exact(quants + scales).flat_map(tile).collect()
        }
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.chunks_exact(2).map(|b| [b[0], b[1]])
}

/// `values` as a cache of type `ty` keeps them.
pub(crate) fn stored(ty: KvType, values: &[f32], row: usize) -> Vec<f32> {
    let mut all = uncached(ty, &cached(ty, values, row), row);
    all.truncate(values.len());
    all
}

/// How far a stored value may be from what was to be stored, as a share of the largest of its
/// neighbours.
pub(crate) fn rounding(ty: KvType) -> f64 {
    match ty {
        KvType::F32 => 1e-5,
        KvType::F16 => 1e-3,
        KvType::Bf16 => 4e-3,
        // Half a step of 127 and the scale's own rounding, which some devices do towards zero.
        KvType::Q8_0 => 5e-3,
        // A whole step: there are 8 on one side of 0 and 7 on the other.
        KvType::Q4_0 => 0.127,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference::{random, wide},
        testing::assert_stored,
    };

    #[test]
    fn what_is_cached_is_nearly_the_same() {
        let row = 192;
        let values = random(1, 11 * row);
        for ty in KvType::ALL {
            let rows = if ty.parts(64)[1] > 0 { 16 } else { 11 };
            assert_eq!(cached(ty, &values, row).len() as u64, ty.bytes(rows * row as u64));
            assert_stored(ty, &stored(ty, &values, row), &wide(&values));
        }
    }
}
