//! The device under test: inputs go in, values come out.

use crate::{
    Result,
    gpu::{Buf, Gpu, Heap, MemoryKind, Recorder},
    kv::KvType,
    ops::{
        Matrix, Tensor,
        product::FEW,
        quantise,
        reference::{Stored, cached::uncached},
    },
    quant::BlockType,
};

/// A device whose kernels are looked at.
pub(super) struct Lab {
    pub(super) gpu: Gpu,
    /// Types of cached keys and values.
    pub(super) cache: (KvType, KvType),
    /// Tests make the device lie by this.
    #[cfg(test)]
    pub(super) falsify: Option<fn(&mut Vec<f32>)>,
}

impl Lab {
    pub(super) fn upload(&self, values: &[f32], width: usize) -> Result<Tensor> {
        let (rows, width) = ((values.len() / width) as u32, width as u32);
        let x = Tensor::factor(&self.gpu, "input", rows, width, FEW)?;
        self.gpu.upload(&x.buf, 0, bytemuck::cast_slice(values))?;
        self.run(|rec| quantise::record(rec, &x, rows))?;
        Ok(x)
    }

    /// Largest error of a product of `n` rows, as a share of its largest value: cooperative
    /// matrices, which make those of many, take factors of 11 bits, products of whole numbers, which
    /// make those of few, round one to 16.
    pub(super) fn product_limit(&self, n: usize) -> f64 {
        let (few, caps) = (n <= FEW as usize, self.gpu.caps());
        match few {
            true if caps.int_dot => 1e-4,
            false if caps.matrices.is_some() => 2e-3,
            _ => 1e-5,
        }
    }

    /// Largest error of attention of `n` queries: cooperative matrices take queries, keys and weights
    /// of 11 bits.
    pub(super) fn attention_limit(&self, n: usize) -> f64 {
        if n > 1 && self.gpu.caps().matrices.is_some() { 5e-3 } else { 1e-5 }
    }

    /// Largest error of the delta rule for `n` tokens: cooperative matrices take factors of 11 bits.
    pub(super) fn delta_limit(&self, n: usize) -> f64 {
        if n > 32 && self.gpu.caps().matrices.is_some() { 2e-3 } else { 1e-5 }
    }

    pub(super) fn upload_words(&self, words: &[u32]) -> Result<Buf> {
        let buf = self.gpu.alloc("input", words.len() as u64 * 4, MemoryKind::Scratch)?;
        self.gpu.upload(&buf, 0, bytemuck::cast_slice(words))?;
        Ok(buf)
    }

    /// A matrix (rows, width) of random weights, and their values.
    pub(super) fn weights(
        &self,
        ty: BlockType,
        [rows, width]: [usize; 2],
    ) -> Result<(Matrix, Vec<f32>)> {
        let stored = Stored::new(ty, 1, [1, rows, width]);
        let matrix = stored.with(|source| {
            let shape = [width as u32, rows as u32, 1];
            Matrix::upload(&self.gpu, Heap::Device, "weights", shape, source)
        })?;
        Ok((matrix, stored.values))
    }

    pub(super) fn scratch(&self, rows: usize, width: usize) -> Result<Tensor> {
        Tensor::scratch(&self.gpu, "output", rows as u32, width as u32)
    }

    /// Submits what `record` adds.
    pub(super) fn run(&self, record: impl FnOnce(&mut Recorder) -> Result<()>) -> Result<()> {
        let mut rec = Recorder::new(&self.gpu);
        record(&mut rec)?;
        let recording = rec.finish()?;
        self.gpu.submit(&recording).map(drop)
    }

    /// All values of a tensor.
    pub(super) fn values(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        Ok(self.given(tensor.read(&self.gpu, tensor.rows)?))
    }

    /// The first `n` numbers of a buffer.
    pub(super) fn words(&self, buf: &Buf, n: usize) -> Result<Vec<u32>> {
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&self.gpu.read(buf, 0, n as u64 * 4)?);
        let values = words.into_iter().map(f32::from_bits).collect();
        Ok(self.given(values).into_iter().map(f32::to_bits).collect())
    }

    /// The first `rows` rows of `row` values that a cache of type `ty` holds.
    pub(super) fn cached(
        &self,
        ty: KvType,
        buf: &Buf,
        rows: usize,
        row: usize,
    ) -> Result<Vec<f32>> {
        let whole = rows.next_multiple_of(KvType::TILE as usize) * row;
        let bytes = self.gpu.read(buf, 0, ty.bytes(whole as u64))?;
        let mut values = uncached(ty, &bytes, row);
        values.truncate(rows * row);
        Ok(self.given(values))
    }

    /// What the device gives, as it is.
    fn given(&self, #[allow(unused_mut)] mut values: Vec<f32>) -> Vec<f32> {
        #[cfg(test)]
        if let Some(falsify) = self.falsify {
            falsify(&mut values);
        }
        values
    }
}
