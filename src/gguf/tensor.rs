//! The tensor table.

use std::path::Path;

use super::cursor::Cursor;
use crate::quant::BlockType;
use crate::{Error, Result};

/// Longest tensor name in bytes.
const MAX_NAME: usize = 63;
/// Largest single dimension.
const MAX_DIM: u64 = 1 << 40;

/// One entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The full name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements along each dimension, the contiguous one first ("ne" order); 1 where unused.
    pub dims: [u64; 4],
    /// Dimensions in use, 1 to 4.
    pub n_dims: usize,
    /// How elements are stored.
    pub ty: BlockType,
    /// The part that holds the data, from 0.
    pub part: usize,
    /// Bytes from the start of that part's file to the data.
    pub offset: u64,
    /// Bytes of the data.
    pub size: u64,
}

impl TensorInfo {
    /// The dimensions in use.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..self.n_dims.min(4)]
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Reads one entry; its offset is still relative to the data section.
    pub(super) fn parse(cursor: &mut Cursor, number: u64) -> Result<Self> {
        let name = cursor.name(MAX_NAME, format_args!("the name of tensor {number}"))?;
        let field = |what: &str| format!("the {what} of tensor `{name}`");
        let n_dims = cursor.u32(field("number of dimensions"))?;
        if !(1..=4).contains(&n_dims) {
            return Err(
                cursor.error(format!("tensor `{name}` has {n_dims} dimensions, not 1 to 4"))
            );
        }
        let n_dims = n_dims as usize;
        let mut dims = [1; 4];
        for dim in &mut dims[..n_dims] {
            *dim = cursor.u64(field("dimensions"))?;
            if !(1..=MAX_DIM).contains(dim) {
                return Err(cursor.error(format!(
                    "tensor `{name}` has a dimension of {dim}, not 1 to {MAX_DIM}"
                )));
            }
        }
        let type_id = cursor.u32(field("type"))?;
        let ty = BlockType::from_id(type_id).ok_or_else(|| {
            cursor.error(format!("tensor `{name}` has unknown type id {type_id}"))
        })?;
        let size =
            data_size(ty, &dims).map_err(|e| cursor.error(format!("tensor `{name}` {e}")))?;
        let offset = cursor.u64(field("offset"))?;
        Ok(Self { name: name.to_owned(), dims, n_dims, ty, part: 0, offset, size })
    }
}

/// Bytes of a tensor: whole blocks along `dims[0]`, rows back to back (spec/gguf.md 1).
///
/// The error continues a sentence that names the tensor.
pub(super) fn data_size(ty: BlockType, dims: &[u64; 4]) -> std::result::Result<u64, String> {
    let elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    if elements.is_none_or(|n| i64::try_from(n).is_err()) {
        return Err(format!("has more elements than 63 bits count: {dims:?}"));
    }
    if !dims[0].is_multiple_of(ty.block_elements() as u64) {
        return Err(format!(
            "has rows of {} elements, not whole blocks of {} ({ty})",
            dims[0],
            ty.block_elements()
        ));
    }
    ty.row_bytes(dims[0])
        .and_then(|row| dims[1..].iter().try_fold(row, |n, &dim| n.checked_mul(dim)))
        .ok_or_else(|| format!("has more bytes than 64 bits count: {dims:?} of {ty}"))
}

/// Makes offsets absolute and checks that data lies in the file, aligned, without overlap.
pub(super) fn place(
    file: &Path,
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<()> {
    let complete = tensors
        .iter()
        .filter_map(|t| data_start.checked_add(t.offset)?.checked_add(t.size))
        .max()
        .unwrap_or(data_start);
    for tensor in &mut *tensors {
        let TensorInfo { name, offset, size, .. } = &*tensor;
        if !offset.is_multiple_of(alignment) {
            return Err(Error::gguf(
                file,
                format!(
                    "tensor `{name}` has offset {offset}, no multiple of the alignment {alignment}"
                ),
            ));
        }
        let start = data_start
            .checked_add(*offset)
            .filter(|start| start.checked_add(*size).is_some_and(|end| end <= file_len));
        tensor.offset = start.ok_or_else(|| {
            Error::gguf(
                file,
                format!(
                    "tensor `{name}` wants {size} bytes at offset {offset} of the data that starts \
                     at {data_start}, but the file is {file_len} bytes long; the tensor table \
                     describes {complete} bytes: it is cut short or damaged"
                ),
            )
        })?;
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].size > pair[1].offset {
            return Err(Error::gguf(
                file,
                format!("tensors `{}` and `{}` overlap", pair[0].name, pair[1].name),
            ));
        }
    }
    Ok(())
}
