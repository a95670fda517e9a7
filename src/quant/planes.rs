//! How the blocks of a format lie in GPU memory: as in the file where a block is a multiple of 16
//! bytes, else split into planes of the same total size, so that shaders load 16 bytes at a time.

use super::{BlockType, bf16, f16, q4_0, q4_k, q5_0, q6_k, q8_0};

/// The GPU layout of a format.
#[derive(Debug)]
pub struct Planes {
    /// Its shader fragment, `shaders/quant/{format}.wgsl`.
    pub format: &'static str,
    /// Weights in a block, a multiple of 32. Rows of floats are padded to whole blocks with 0.
    pub elements: u32,
    /// Which bytes of a block, `from..to`, each plane holds.
    pub ranges: &'static [[usize; 2]],
}

/// Planes start at multiples of this.
const ALIGN: u64 = 16;

impl Planes {
    /// Blocks of a row of `n_in` weights.
    pub const fn row_blocks(&self, n_in: u32) -> u32 {
        n_in.div_ceil(self.elements)
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.ranges.iter().map(|[from, to]| to - from).sum()
    }

    /// Where the planes of `blocks` blocks start, and their total size.
    pub fn offsets(&self, blocks: u64) -> (Vec<u64>, u64) {
        let mut end = 0;
        let starts = self.ranges.iter().map(|[from, to]| {
            let start = end;
            end += (blocks * (to - from) as u64).next_multiple_of(ALIGN);
            start
        });
        (starts.collect(), end)
    }

    /// Appends a row of file blocks to the planes, padded to whole blocks.
    pub fn append(&self, row: &[u8], planes: &mut [Vec<u8>]) {
        let mut blocks = row.chunks_exact(self.block_bytes());
        for block in blocks.by_ref() {
            self.append_block(block, planes);
        }
        let rest = blocks.remainder();
        if !rest.is_empty() {
            let mut block = vec![0; self.block_bytes()];
            block[..rest.len()].copy_from_slice(rest);
            self.append_block(&block, planes);
        }
    }

    fn append_block(&self, block: &[u8], planes: &mut [Vec<u8>]) {
        for (plane, [from, to]) in planes.iter_mut().zip(self.ranges) {
            plane.extend_from_slice(&block[*from..*to]);
        }
    }
}

const F32: Planes = Planes { format: "f32", elements: 32, ranges: &[[0, 128]] };

impl BlockType {
    /// The GPU layout of this type; `None` where no kernel reads it.
    pub const fn planes(self) -> Option<&'static Planes> {
        match self {
            Self::F32 => Some(&F32),
            Self::F16 => Some(&f16::PLANES),
            Self::Bf16 => Some(&bf16::PLANES),
            Self::Q4_0 => Some(&q4_0::PLANES),
            Self::Q5_0 => Some(&q5_0::PLANES),
            Self::Q8_0 => Some(&q8_0::PLANES),
            Self::Q4K => Some(&q4_k::PLANES),
            Self::Q6K => Some(&q6_k::PLANES),
            _ => None,
        }
    }

    /// Whether the GPU kernels can multiply by weights of this type.
    pub const fn runs_on_gpu(self) -> bool {
        self.planes().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_every_byte_once() {
        for &ty in BlockType::ALL {
            let Some(planes) = ty.planes() else { continue };
            let blocks = planes.elements as usize / ty.block_elements();
            assert_eq!(planes.block_bytes(), blocks * ty.block_bytes(), "{ty}");
            assert!(planes.elements.is_multiple_of(32), "{ty}");
            let [from, to] = planes.ranges[0];
            assert!((to - from).is_multiple_of(16), "{ty}");
            let row: Vec<u8> = (0..planes.block_bytes()).map(|i| i as u8).collect();
            let mut out = vec![Vec::new(); planes.ranges.len()];
            planes.append(&row, &mut out);
            let mut all = out.concat();
            all.sort();
            assert_eq!(all, row, "{ty}");
        }
    }

    #[test]
    fn planes_are_aligned_and_no_larger_than_the_file() {
        assert_eq!(q6_k::PLANES.offsets(8), (vec![0, 8 * 208], 8 * 210));
        assert_eq!(q8_0::PLANES.offsets(3), (vec![0, 96], 112));
        assert_eq!(q4_k::PLANES.offsets(3), (vec![0], 3 * 144));
        assert_eq!(q5_0::PLANES.offsets(3), (vec![0, 48, 64], 80));
    }

    #[test]
    fn odd_rows_of_floats_are_padded() {
        let mut out = vec![Vec::new()];
        f16::PLANES.append(&[7; 66], &mut out);
        assert_eq!(out[0].len(), 128);
        assert!(out[0][..66].iter().all(|b| *b == 7) && out[0][66..].iter().all(|b| *b == 0));
    }
}
