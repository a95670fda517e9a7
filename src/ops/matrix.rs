//! Weight matrices on the device, in the blocks of the file, split where a binding ends.

use crate::{
    Error, Result,
    gpu::{Buf, Gpu, Heap, MemoryKind},
    quant::{BlockType, Planes, excess, reach},
};
use std::ops::Range;

/// A matrix, or a stack of equal ones (experts): `n_expert` times `n_out` rows of `n_in` weights.
/// Rows are numbered over the whole stack, `expert * n_out + row`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// How the weights are stored.
    pub ty: BlockType,
    /// Weights a row: values of x.
    pub n_in: u32,
    /// Rows of one matrix: values of y.
    pub n_out: u32,
    /// Matrices in the stack, 1 for a plain one.
    pub n_expert: u32,
    /// The rows, part after part; each part fits one binding.
    pub parts: Vec<MatrixPart>,
    pub(super) planes: &'static Planes,
    /// Products with weights like these may be of f16.
    pub(super) in_f16: bool,
}

/// Some rows of a [`Matrix`], in one buffer.
#[derive(Clone, Debug)]
pub struct MatrixPart {
    /// The planes of the rows' blocks.
    pub buf: Buf,
    /// First row, of the whole stack.
    pub first_row: u32,
    /// Number of rows.
    pub rows: u32,
}

/// Where the weights of a matrix come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// How they are stored.
    pub ty: BlockType,
    /// The rows of an expert (0 for a plain matrix), as in the file.
    pub rows: &'a dyn Fn(u32) -> &'a [u8],
    /// The factor of each expert's weights, where the format has one and it is not 1.
    pub factors: Option<&'a [f32]>,
    /// Is told rows of the whole stack that are not read again.
    pub used: &'a dyn Fn(Range<u32>),
}

/// A row of weights as in the file, and the factor of its matrix.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    bytes: &'a [u8],
    factor: f32,
}

/// `struct Part` of `shared/part.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
pub(super) struct PartParams {
    first_row: u32,
    rows: u32,
    row_blocks: u32,
    blocks: u32,
}

/// Weights up to this, times activations of less than 16 (`f16_rows.wgsl`), and sums of some are far
/// from the end of f16 at 65504, to which some drivers round products.
const F16_REACH: f32 = 1024.0;

/// Bytes repacked at a time.
const PIECE: usize = 4 << 20;

impl Matrix {
    /// Uploads a matrix of `shape` (n_in, n_out, n_expert) to `heap`. The blocks of `source` are
    /// repacked in pieces.
    ///
    /// # Errors
    /// [`Error::Model`] naming `label` when the type has no kernels, a length is wrong or weights are
    /// beyond f32;
    /// [`Error::Device`] when one row exceeds a binding or memory is short.
    pub fn upload(
        gpu: &Gpu,
        heap: Heap,
        label: &str,
        [n_in, n_out, n_expert]: [u32; 3],
        source: Source<'_>,
    ) -> Result<Self> {
        source.check(label, n_in, n_out, n_expert)?;
        let shape = Shape { ty: source.ty, n_in, n_out, n_expert, together: 1 };
        shape.upload(gpu, heap, label, &|row| source.row(row, n_out), source.used)
    }

    /// Bytes that the device reads.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.buf.size()).sum()
    }

    /// Whether rows are no whole number of units of 32 weights: kernels then read x value by value.
    pub(super) fn odd(&self) -> bool {
        !self.n_in.is_multiple_of(32)
    }

    pub(super) fn part_params(&self, part: &MatrixPart) -> PartParams {
        let row_blocks = self.planes.row_blocks(self.n_in);
        PartParams {
            first_row: part.first_row,
            rows: part.rows,
            row_blocks,
            blocks: part.rows * row_blocks,
        }
    }
}

impl<'a> Source<'a> {
    /// Fails unless each expert's rows have the length that belongs to the shape.
    pub(super) fn check(&self, label: &str, n_in: u32, n_out: u32, n_expert: u32) -> Result<()> {
        let ty = self.ty;
        let wanted = ty.row_bytes(n_in.into()).map(|bytes| bytes * u64::from(n_out));
        for expert in 0..n_expert {
            let bytes = (self.rows)(expert).len();
            if Some(bytes as u64) != wanted {
                return Err(Error::Model(format!(
                    "{label}: {bytes} bytes of {ty} are no {n_out} rows of {n_in} weights"
                )));
            }
        }
        if let Some(factors) = self.factors {
            let used = ty.planes().is_some_and(|planes| planes.has_factor);
            if !used || factors.len() != n_expert as usize {
                return Err(Error::Model(format!(
                    "{label}: {} factors for {n_expert} matrices of {ty}",
                    factors.len()
                )));
            }
        }
        Ok(())
    }

    /// Row `row` of the whole stack.
    pub(super) fn row(&self, row: u32, n_out: u32) -> Row<'a> {
        let expert = (self.rows)(row / n_out);
        let length = expert.len() / n_out as usize;
        let bytes = &expert[(row % n_out) as usize * length..][..length];
        let factor = self.factors.map_or(1.0, |factors| factors[(row / n_out) as usize]);
        Row { bytes, factor }
    }
}

/// What [`Matrix`] is made from.
pub(crate) struct Shape {
    pub(crate) ty: BlockType,
    pub(crate) n_in: u32,
    pub(crate) n_out: u32,
    pub(crate) n_expert: u32,
    /// Rows that must stay in one part: parts hold multiples of it.
    pub(crate) together: u32,
}

impl Shape {
    pub(super) fn upload<'a>(
        self,
        gpu: &Gpu,
        heap: Heap,
        label: &str,
        row: &dyn Fn(u32) -> Row<'a>,
        used: &dyn Fn(Range<u32>),
    ) -> Result<Matrix> {
        let (planes, ranges) = self.parts(label, gpu.caps().max_binding)?;
        let Self { ty, n_in, n_out, n_expert, .. } = self;
        let row_blocks = planes.row_blocks(n_in);
        let mut parts = Vec::new();
        // Looked for where it matters.
        let mut in_f16 = gpu.caps().matrices.is_some() && ty != BlockType::F32;
        let mut fault = None;
        let row = &mut |number: u32| {
            let row = row(number);
            in_f16 = in_f16 && reach(ty, row.bytes, row.factor) <= F16_REACH;
            fault = fault.take().or_else(|| excess(ty, row.bytes));
            row
        };
        for range in ranges {
            let (first_row, rows) = (range.start, range.len() as u32);
            let buf = upload_part((gpu, heap), label, planes, row_blocks, range, row, used)?;
            parts.push(MatrixPart { buf, first_row, rows });
        }
        if let Some(fault) = fault {
            return Err(Error::Model(format!("{label}: {fault}")));
        }
        Ok(Matrix { ty, n_in, n_out, n_expert, parts, planes, in_f16 })
    }

    /// Bytes on a device.
    ///
    /// # Errors
    /// As of [`Matrix::upload`], but for memory.
    pub(crate) fn bytes(&self, label: &str, max_binding: u64) -> Result<u64> {
        let (planes, ranges) = self.parts(label, max_binding)?;
        let row_blocks = u64::from(planes.row_blocks(self.n_in));
        let blocks = ranges.iter().map(|rows| rows.len() as u64 * row_blocks);
        Ok(blocks.map(|blocks| planes.offsets(blocks).1).sum())
    }

    /// The layout, and the rows of every part.
    fn parts(&self, label: &str, max_binding: u64) -> Result<(&'static Planes, Vec<Range<u32>>)> {
        let &Self { ty, n_in, n_out, n_expert, together } = self;
        let planes = ty
            .planes()
            .ok_or_else(|| Error::Model(format!("{label}: weights of type {ty} do not run")))?;
        let rows = n_out.checked_mul(n_expert).filter(|rows| *rows > 0 && n_in > 0);
        let rows = rows.ok_or_else(|| {
            Error::Model(format!("{label}: {n_expert} x {n_out} rows of {n_in} weights"))
        })?;
        let row_blocks = planes.row_blocks(n_in);
        let step = rows_a_binding(planes, row_blocks, max_binding) / together * together;
        if step == 0 {
            return Err(Error::Device(format!(
                "{label}: one row needs {} bytes in one binding, the limit is {max_binding}",
                planes.offsets((row_blocks * together).into()).1,
            )));
        }
        let part = |first: u32| first..rows.min(first.saturating_add(step));
        Ok((planes, (0..rows).step_by(step as usize).map(part).collect()))
    }
}

/// The most rows whose planes fit `max_binding` bytes.
fn rows_a_binding(planes: &Planes, row_blocks: u32, max_binding: u64) -> u32 {
    let row_bytes = u64::from(row_blocks) * planes.block_bytes() as u64;
    // Block numbers of a part are u32.
    let most = (max_binding / row_bytes).min(u64::from(u32::MAX / row_blocks));
    let fits = |rows: &u64| planes.offsets(rows * u64::from(row_blocks)).1 <= max_binding;
    (0..=most).rev().find(fits).unwrap_or(0) as u32
}

fn upload_part<'a>(
    (gpu, heap): (&Gpu, Heap),
    label: &str,
    planes: &Planes,
    row_blocks: u32,
    rows: Range<u32>,
    row: &mut dyn FnMut(u32) -> Row<'a>,
    used: &dyn Fn(Range<u32>),
) -> Result<Buf> {
    let (starts, size) = planes.offsets(rows.len() as u64 * u64::from(row_blocks));
    let buf = gpu.alloc_in(heap, label, size, MemoryKind::Weights)?;
    if !planes.table.is_empty() {
        gpu.upload(&buf, 0, bytemuck::cast_slice(planes.table))?;
    }
    // Pieces of a multiple of 16 rows start at a multiple of 16 bytes in every plane.
    let row_bytes = row_blocks as usize * planes.block_bytes();
    let piece_rows = (PIECE / row_bytes).max(1).next_multiple_of(16) as u32;
    let mut piece = vec![Vec::new(); starts.len()];
    for first in rows.clone().step_by(piece_rows as usize) {
        piece.iter_mut().for_each(Vec::clear);
        let of_piece = first..rows.end.min(first + piece_rows);
        for r in of_piece.clone() {
            let Row { bytes, factor } = row(r);
            planes.append(bytes, factor, &mut piece);
        }
        used(of_piece);
        let blocks_before = u64::from(first - rows.start) * u64::from(row_blocks);
        for ((bytes, start), block) in piece.iter_mut().zip(&starts).zip(planes.plane_bytes()) {
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            gpu.upload(&buf, start + blocks_before * block, bytes)?;
        }
    }
    Ok(buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::TestDevice;

    #[test]
    fn what_cannot_be_uploaded_is_named() {
        let t = TestDevice::with_binding(4096);
        let bytes = vec![0_u8; 1 << 16];
        let fails = |ty, n_in: u32, n_out: u32, length: usize, words: &[&str]| {
            let source = |_| &bytes[..length];
            let source = Source { ty, rows: &source, factors: None, used: &|_| () };
            let shape = [n_in, n_out, 1];
            let e = Matrix::upload(&t.gpu, Heap::Device, "blk.0.ffn_up", shape, source);
            let text = e.unwrap_err().to_string();
            assert!(text.contains("blk.0.ffn_up"), "{text}");
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
        };
        fails(BlockType::F32, 2048, 1, 8192, &["8192 bytes", "limit is 4096"]);
        fails(BlockType::Q4K, 256, 2, 144, &["144 bytes of Q4_K", "2 rows of 256"]);
        fails(BlockType::Q4K, 100, 1, 144, &["rows of 100"]);
        fails(BlockType::I8, 16, 2, 32, &["I8"]);
        fails(BlockType::F32, 16, 0, 0, &["1 x 0 rows"]);
    }

    /// Known fault: the device made NaN of weights that f32 can hold.
    #[test]
    fn exponents_too_large_for_sums_are_refused() {
        let t = TestDevice::with_binding(4096);
        for e in 250..=255 {
            let mut bytes = [0x1f; 2 * 17];
            (bytes[0], bytes[17]) = (127, e);
            let source = |_| &bytes[..];
            let source =
                Source { ty: BlockType::Mxfp4, rows: &source, factors: None, used: &|_| () };
            let matrix = Matrix::upload(&t.gpu, Heap::Device, "blk.0.ffn_up", [32, 2, 1], source);
            match matrix.map_err(|e| e.to_string()) {
                Ok(_) => assert!(e < 252 || e == 255, "{e}"),
                Err(text) => {
                    let words = ["blk.0.ffn_up: a block of MXFP4", &format!("exponent {e}")];
                    assert!(
                        words.iter().all(|w| text.contains(w)) && (252..255).contains(&e),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn parts_fill_their_bindings() {
        let planes = BlockType::Q8_0.planes().unwrap();
        // 3 blocks of 34 bytes a row; planes of 96 rows and 6 rows bytes, each rounded up to 16.
        assert_eq!(rows_a_binding(planes, 3, 4096), 40);
        assert_eq!(rows_a_binding(planes, 3, 101), 0);
        let planes = BlockType::F32.planes().unwrap();
        assert_eq!(rows_a_binding(planes, 32, 4096), 1);
        assert_eq!(rows_a_binding(planes, 32, 4095), 0);
    }
}
