//! How the blocks of a format lie in GPU memory: as in the file where a block is a multiple of 16
//! bytes, else split into planes of the same total size, so that shaders load 16 bytes at a time.

use super::{
    BlockType, bf16, f16, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs,
    mxfp4, nvfp4, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};

/// The GPU layout of a format.
#[derive(Debug)]
pub struct Planes {
    /// Its shader fragment, `shaders/quant/{format}.wgsl`.
    pub format: &'static str,
    /// Weights in a block, a multiple of 32. Rows of floats are padded to whole blocks with 0.
    pub elements: u32,
    /// Which bytes of a block, `from..to`, each plane holds.
    pub ranges: &'static [[usize; 2]],
    /// Words that the fragment looks weights up in; they precede the planes in every buffer, since
    /// indexed constants of a shader may end up in each invocation's memory. Empty for most formats.
    pub table: &'static [u32],
    /// Whether a last plane holds the factor of a block's matrix, f32.
    pub has_factor: bool,
}

/// Planes start at multiples of this.
const ALIGN: u64 = 16;

impl Planes {
    pub(super) const fn new(
        format: &'static str,
        elements: u32,
        ranges: &'static [[usize; 2]],
    ) -> Self {
        Self { format, elements, ranges, table: &[], has_factor: false }
    }

    pub(super) const fn with_table(self, table: &'static [u32]) -> Self {
        Self { table, ..self }
    }

    pub(super) const fn with_factor(self) -> Self {
        Self { has_factor: true, ..self }
    }

    /// Blocks of a row of `n_in` weights.
    pub const fn row_blocks(&self, n_in: u32) -> u32 {
        n_in.div_ceil(self.elements)
    }

    /// Bytes of one block in the file.
    pub fn block_bytes(&self) -> usize {
        self.ranges.iter().map(|[from, to]| to - from).sum()
    }

    /// Bytes of one block in each plane.
    pub fn plane_bytes(&self) -> impl Iterator<Item = u64> {
        let factor = self.has_factor.then_some(size_of::<f32>() as u64);
        self.ranges.iter().map(|[from, to]| (to - from) as u64).chain(factor)
    }

    /// Where the planes of `blocks` blocks start, and the total size of table and planes.
    pub fn offsets(&self, blocks: u64) -> (Vec<u64>, u64) {
        let mut end = size_of_val(self.table) as u64;
        let starts = self.plane_bytes().map(|bytes| {
            let start = end;
            end += (blocks * bytes).next_multiple_of(ALIGN);
            start
        });
        (starts.collect(), end)
    }

    /// Appends a row of file blocks to the planes, padded to whole blocks. `factor` is that of the
    /// matrix.
    pub fn append(&self, row: &[u8], factor: f32, planes: &mut [Vec<u8>]) {
        let mut blocks = row.chunks_exact(self.block_bytes());
        for block in blocks.by_ref() {
            self.append_block(block, factor, planes);
        }
        let rest = blocks.remainder();
        if !rest.is_empty() {
            let mut block = vec![0; self.block_bytes()];
            block[..rest.len()].copy_from_slice(rest);
            self.append_block(&block, factor, planes);
        }
    }

    fn append_block(&self, block: &[u8], factor: f32, planes: &mut [Vec<u8>]) {
        for (plane, [from, to]) in planes.iter_mut().zip(self.ranges) {
            plane.extend_from_slice(&block[*from..*to]);
        }
        if let (true, Some(plane)) = (self.has_factor, planes.last_mut()) {
            plane.extend_from_slice(&factor.to_le_bytes());
        }
    }
}

const F32: Planes = Planes::new("f32", 32, &[[0, 128]]);

impl BlockType {
    /// The GPU layout of this type; `None` where no kernel reads it.
    pub const fn planes(self) -> Option<&'static Planes> {
        match self {
            Self::F32 => Some(&F32),
            Self::F16 => Some(&f16::PLANES),
            Self::Bf16 => Some(&bf16::PLANES),
            Self::Q4_0 => Some(&q4_0::PLANES),
            Self::Q4_1 => Some(&q4_1::PLANES),
            Self::Q5_0 => Some(&q5_0::PLANES),
            Self::Q5_1 => Some(&q5_1::PLANES),
            Self::Q8_0 => Some(&q8_0::PLANES),
            Self::Q2K => Some(&q2_k::PLANES),
            Self::Q3K => Some(&q3_k::PLANES),
            Self::Q4K => Some(&q4_k::PLANES),
            Self::Q5K => Some(&q5_k::PLANES),
            Self::Q6K => Some(&q6_k::PLANES),
            Self::Iq4Nl => Some(&iq4_nl::PLANES),
            Self::Iq4Xs => Some(&iq4_xs::PLANES),
            Self::Iq3S => Some(&iq3_s::PLANES),
            Self::Iq3Xxs => Some(&iq3_xxs::PLANES),
            Self::Iq2S => Some(&iq2_s::PLANES),
            Self::Iq2Xs => Some(&iq2_xs::PLANES),
            Self::Iq2Xxs => Some(&iq2_xxs::PLANES),
            Self::Iq1S => Some(&iq1_s::PLANES),
            Self::Iq1M => Some(&iq1_m::PLANES),
            Self::Mxfp4 => Some(&mxfp4::PLANES),
            Self::Nvfp4 => Some(&nvfp4::PLANES),
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
            // Where a run of 16 weights has no more than a word of bits, so have loads.
            let [from, to] = planes.ranges[0];
            let few_bits = 8 * ty.block_bytes() < 4 * ty.block_elements();
            let load = if few_bits && !planes.table.is_empty() { 4 } else { 16 };
            assert!((to - from).is_multiple_of(load), "{ty}");
            assert!(planes.table.len().is_multiple_of(4), "{ty}");
            let row: Vec<u8> = (0..planes.block_bytes()).map(|i| i as u8).collect();
            let mut out = vec![Vec::new(); planes.plane_bytes().count()];
            planes.append(&row, 0.5, &mut out);
            if planes.has_factor {
                assert_eq!(out.pop(), Some(0.5_f32.to_le_bytes().to_vec()), "{ty}");
            }
            let mut all = out.concat();
            all.sort();
            assert_eq!(all, row, "{ty}");
        }
    }

    #[test]
    fn planes_are_aligned_and_hold_what_the_file_does() {
        assert_eq!(q6_k::PLANES.offsets(8), (vec![0, 8 * 208], 8 * 210));
        assert_eq!(q8_0::PLANES.offsets(3), (vec![0, 96], 112));
        assert_eq!(q4_k::PLANES.offsets(3), (vec![0], 3 * 144));
        assert_eq!(q5_0::PLANES.offsets(3), (vec![0, 48, 64], 80));
        // A table of 768 words goes before.
        assert_eq!(iq2_xxs::PLANES.offsets(8), (vec![3072, 3584], 3072 + 8 * 66));
        // 3 x 32, 3 x 4 and 3 x 4 bytes.
        assert_eq!(nvfp4::PLANES.offsets(3), (vec![1024, 1120, 1136], 1152));
    }

    #[test]
    fn odd_rows_of_floats_are_padded() {
        let mut out = vec![Vec::new()];
        f16::PLANES.append(&[7; 66], 1.0, &mut out);
        assert_eq!(out[0].len(), 128);
        assert!(out[0][..66].iter().all(|b| *b == 7) && out[0][66..].iter().all(|b| *b == 0));
    }
}
