//! f32 activations on the device.

use super::{f16_rows, product};
use crate::{
    Error, Result,
    gpu::{Buf, Gpu, Memory, MemoryKind},
};

/// Bytes of 32 values as whole numbers.
const WHOLE_BYTES: u64 = 80;

/// A buffer of `rows` rows of `width` f32 values, dense. A step uses the first rows it needs.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The memory.
    pub buf: Buf,
    /// Rows there is room for.
    pub rows: u32,
    /// Values a row.
    pub width: u32,
    /// Room for the same in f16 ([`f16_rows`](super::f16_rows)), for products of many rows.
    pub(super) f16: Option<Buf>,
    /// The first rows as whole numbers (`shaders/shared/quantise.wgsl`): whatever writes few rows writes
    /// them, too.
    pub(crate) whole: Option<Buf>,
}

impl Tensor {
    /// Scratch of `rows` x `width`; content unspecified.
    ///
    /// # Errors
    /// [`Error::Device`] when it exceeds a binding or memory is short.
    pub fn scratch(gpu: &dyn Memory, label: &str, rows: u32, width: u32) -> Result<Self> {
        let bytes = u64::from(rows) * u64::from(width) * 4;
        Ok(Self::of(gpu.alloc(label, bytes, MemoryKind::Scratch)?, rows, width))
    }

    /// Scratch for what matrices are multiplied with. Besides, where the device is fast at products
    /// of bytes, up to `few` rows have a form as whole numbers; where it has cooperative matrices,
    /// there is room for many rows' f16 form.
    ///
    /// # Errors
    /// As [`Self::scratch`].
    pub fn factor(gpu: &dyn Memory, label: &str, rows: u32, width: u32, few: u32) -> Result<Self> {
        let mut tensor = Self::scratch(gpu, label, rows, width)?;
        let few = rows.min(few);
        if gpu.caps().int_dot && width.is_multiple_of(32) && few > 0 {
            let bytes = u64::from(few) * u64::from(width / 32) * WHOLE_BYTES;
            tensor.whole = Some(gpu.alloc(label, bytes, MemoryKind::Scratch)?);
        }
        if gpu.caps().matrices.is_some() && rows > product::FEW {
            let bytes = u64::from(rows) * f16_rows::row_bytes(width);
            tensor.f16 = Some(gpu.alloc(label, bytes, MemoryKind::Scratch)?);
        }
        Ok(tensor)
    }

    /// `rows` x `width` values in `buf`, which has room for them.
    pub(crate) fn of(buf: Buf, rows: u32, width: u32) -> Self {
        Self { buf, rows, width, whole: None, f16: None }
    }

    /// `values` (`rows` x `width`) uploaded, e.g. a norm's gamma.
    ///
    /// # Errors
    /// [`Error::Device`] when the length is wrong or memory is short.
    pub fn upload(
        gpu: &Gpu,
        label: &str,
        values: &[f32],
        width: u32,
        kind: MemoryKind,
    ) -> Result<Self> {
        let rows = values.len() / (width.max(1) as usize);
        if rows * width as usize != values.len() {
            return Err(Error::Device(format!(
                "{label}: {} values in rows of {width}",
                values.len()
            )));
        }
        let buf = gpu.alloc(label, values.len() as u64 * 4, kind)?;
        gpu.upload(&buf, 0, bytemuck::cast_slice(values))?;
        Ok(Self::of(buf, rows as u32, width))
    }

    /// The first `rows` rows, once everything submitted is done.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn read(&self, gpu: &Gpu, rows: u32) -> Result<Vec<f32>> {
        let bytes = u64::from(rows) * u64::from(self.width) * 4;
        Ok(bytemuck::pod_collect_to_vec(&gpu.read(&self.buf, 0, bytes)?))
    }

    /// The form as whole numbers of the first `n` rows, where there is one.
    pub(super) fn whole(&self, n: u32) -> Option<&Buf> {
        let bytes = u64::from(n) * u64::from(self.width / 32) * WHOLE_BYTES;
        self.whole.as_ref().filter(|whole| whole.size() >= bytes)
    }

    /// Fails unless there is room for `rows` rows and each has `width` values.
    pub(crate) fn expect(&self, op: &str, name: &str, rows: u32, width: u32) -> Result<()> {
        if self.rows >= rows && self.width == width {
            return Ok(());
        }
        Err(Error::Shader(format!(
            "{op}: {name} is {} x {}, wanted {rows} x {width}",
            self.rows, self.width
        )))
    }
}
