//! From the file to the device, tensor by tensor.

use super::factors::factors;
use crate::{
    Error, Result,
    gguf::{Gguf, TensorInfo},
    gpu::{Gpu, Heap, MemoryKind},
    ngram,
    ops::{Matrix, Source, Tensor, gated_product::GateUp},
    quant::{self, BlockType},
};
use std::ops::Range;

/// Called with the bytes of weights that are on the device and the bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Uploads a file's tensors and reports how far it is.
pub struct Loader<'a> {
    gguf: &'a Gguf,
    gpu: &'a Gpu,
    progress: Progress<'a>,
    done: u64,
    total: u64,
    /// Layers, from the first, whose experts go to host memory.
    experts_host: u32,
}

impl<'a> Loader<'a> {
    /// A loader of the tensors of `gguf`; the experts of the first `experts_host` layers go to
    /// memory of the host that the device reads in place.
    pub fn new(gguf: &'a Gguf, gpu: &'a Gpu, experts_host: u32, progress: Progress<'a>) -> Self {
        let uploaded = |t: &&TensorInfo| t.name != ngram::TABLE;
        let total = gguf.tensors().iter().filter(uploaded).map(|t| t.size).sum();
        Self { gguf, gpu, progress, done: 0, total, experts_host }
    }

    /// Whether the file has tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A weight matrix `[n_in, n_out]`, or one per expert `[n_in, n_out, n_expert]`.
    ///
    /// # Errors
    /// A missing tensor, a type the GPU kernels do not know, or no memory.
    pub fn matrix(&mut self, name: &str) -> Result<Matrix> {
        let tensor = self.info(name)?;
        let [n_in, n_out, n_expert, _] = tensor.dims;
        let all = Rows { tensor, first: 0, rows: n_out };
        let (rows, used) = (all.by_expert(self.gguf), self.release(all));
        let [n_in, n_out, n_expert] = [n_in, n_out, n_expert].map(|n| n as u32);
        let factors = factors(self.gguf, tensor)?;
        let source =
            Source { ty: tensor.ty, rows: &|e| rows(e), factors: factors.as_deref(), used: &used };
        let (heap, shape) = (self.heap(name), [n_in, n_out, n_expert]);
        let matrix = Matrix::upload(self.gpu, heap, name, shape, source)?;
        self.loaded(tensor, tensor.size);
        Ok(matrix)
    }

    /// One matrix of the rows of several with the same input, one after the other; in F32 where they
    /// are of different types or have factors. One product then serves all.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn stacked(&mut self, names: &[&str]) -> Result<Matrix> {
        let tensors = names.iter().map(|name| self.info(name)).collect::<Result<Vec<_>>>()?;
        let mut alike = tensors.windows(2).all(|pair| pair[0].ty == pair[1].ty);
        for tensor in &tensors {
            alike &= factors(self.gguf, tensor)?.is_none();
        }
        let (mut bytes, mut ty) = (Vec::new(), BlockType::F32);
        for (tensor, name) in tensors.iter().zip(names) {
            if alike {
                ty = tensor.ty;
                bytes.extend_from_slice(self.gguf.data(tensor));
                self.loaded(tensor, tensor.size);
            } else {
                bytes.extend_from_slice(bytemuck::cast_slice(&self.values(name)?));
            }
        }
        let n_in = tensors.first().map_or(0, |t| t.dims[0]) as u32;
        let n_out = tensors.iter().map(|t| t.dims[1]).sum::<u64>() as u32;
        let source = Source { ty, rows: &|_| &bytes, factors: None, used: &|_| () };
        let label = names.join(" and ");
        Matrix::upload(self.gpu, Heap::Device, &label, [n_in, n_out, 1], source)
    }

    /// The gate and up projections of a feed-forward network or of a stack of experts.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn gate_up(&mut self, gate: &str, up: &str) -> Result<GateUp> {
        let (gate, up) = (self.info(gate)?, self.info(up)?);
        let of = |t: &'a TensorInfo| Rows { tensor: t, first: 0, rows: t.dims[1] };
        self.upload_pair(of(gate), of(up))
    }

    /// The same from one tensor: an expert's gate rows, then its up rows.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn merged_gate_up(&mut self, name: &str) -> Result<GateUp> {
        let tensor = self.info(name)?;
        let rows = tensor.dims[1] / 2;
        let half = |first| Rows { tensor, first, rows };
        self.upload_pair(half(0), half(rows))
    }

    /// A tensor kept in f32: norms, biases, convolution weights; rows of ne0 values.
    ///
    /// # Errors
    /// A missing tensor or no memory.
    pub fn vector(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.info(name)?;
        let values = self.values(name)?;
        let width = if tensor.dims[1] == 1 { tensor.elements() } else { tensor.dims[0] };
        Tensor::upload(self.gpu, name, &values, width as u32, MemoryKind::Weights)
    }

    /// A tensor kept in f32 and cut into `rows`, every value times `factor`.
    ///
    /// # Errors
    /// As [`Self::vector`].
    pub fn rows(&mut self, name: &str, rows: u32, factor: f32) -> Result<Tensor> {
        let mut values = self.values(name)?;
        values.iter_mut().for_each(|v| *v *= factor);
        let width = values.len() as u32 / rows.max(1);
        Tensor::upload(self.gpu, name, &values, width, MemoryKind::Weights)
    }

    /// The values of a small tensor, for the host.
    ///
    /// # Errors
    /// A missing tensor.
    pub fn values(&mut self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.info(name)?;
        let mut values = vec![0.0; tensor.elements() as usize];
        quant::dequantise(tensor.ty, self.gguf.data(tensor), &mut values)?;
        let factors = factors(self.gguf, tensor)?;
        let matrix = (tensor.dims[0] * tensor.dims[1]) as usize;
        for (values, factor) in values.chunks_mut(matrix).zip(factors.iter().flatten()) {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        self.loaded(tensor, tensor.size);
        Ok(values)
    }

    /// As [`Self::matrix`], where the file has it.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn optional_matrix(&mut self, name: &str) -> Result<Option<Matrix>> {
        self.has(name).then(|| self.matrix(name)).transpose()
    }

    /// As [`Self::vector`], where the file has it.
    ///
    /// # Errors
    /// As [`Self::vector`].
    pub fn optional_vector(&mut self, name: &str) -> Result<Option<Tensor>> {
        self.has(name).then(|| self.vector(name)).transpose()
    }

    /// As [`Self::values`], where the file has it.
    ///
    /// # Errors
    /// As [`Self::values`].
    pub fn optional_values(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        self.has(name).then(|| self.values(name)).transpose()
    }

    fn heap(&self, name: &str) -> Heap {
        match is_experts(name) && layer(name).is_some_and(|il| il < self.experts_host) {
            true => Heap::Host,
            false => Heap::Device,
        }
    }

    fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.gguf.tensor(name).ok_or_else(|| Error::Model(format!("tensor {name} is missing")))
    }

    fn upload_pair(&mut self, gate: Rows<'a>, up: Rows<'a>) -> Result<GateUp> {
        let [n_in, _, n_expert, _] = gate.tensor.dims;
        let (gate_of, up_of) = (gate.by_expert(self.gguf), up.by_expert(self.gguf));
        let (gate_factors, up_factors) =
            (factors(self.gguf, gate.tensor)?, factors(self.gguf, up.tensor)?);
        let (gate_factors, up_factors) = (gate_factors.as_deref(), up_factors.as_deref());
        let (gate_used, up_used) = (self.release(gate), self.release(up));
        let (gate_ty, up_ty) = (gate.tensor.ty, up.tensor.ty);
        let both = GateUp::upload(
            self.gpu,
            self.heap(&gate.tensor.name),
            &gate.tensor.name,
            [n_in as u32, gate.rows as u32, n_expert as u32],
            Source { ty: gate_ty, rows: &|e| gate_of(e), factors: gate_factors, used: &gate_used },
            Source { ty: up_ty, rows: &|e| up_of(e), factors: up_factors, used: &up_used },
        )?;
        self.loaded(gate.tensor, gate.bytes());
        self.loaded(up.tensor, up.bytes());
        Ok(both)
    }

    /// Lets go of pages of rows that were read: a large tensor must not be resident as a whole.
    fn release(&self, of: Rows<'a>) -> impl Fn(Range<u32>) + use<'a> {
        let (gguf, uncache) = (self.gguf, self.gpu.adapter().kind.shares_memory());
        move |rows| of.ranges(rows).for_each(|bytes| gguf.release(of.tensor, bytes, uncache))
    }

    /// Counts `bytes` of `tensor`, which is not read again, and lets go of its pages.
    fn loaded(&mut self, tensor: &TensorInfo, bytes: u64) {
        let uncache = self.gpu.adapter().kind.shares_memory();
        self.gguf.release(tensor, 0..tensor.size, uncache);
        self.done += bytes;
        (self.progress)(self.done, self.total);
    }
}

/// Whether a tensor is a stack of experts.
pub(crate) fn is_experts(name: &str) -> bool {
    name.ends_with("_exps.weight")
}

/// The layer that a tensor belongs to.
pub(crate) fn layer(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Some rows of every matrix of a stack.
#[derive(Clone, Copy)]
struct Rows<'a> {
    tensor: &'a TensorInfo,
    first: u64,
    rows: u64,
}

impl<'a> Rows<'a> {
    fn row_bytes(&self) -> u64 {
        self.tensor.size / self.tensor.dims[1..].iter().product::<u64>()
    }

    fn bytes(&self) -> u64 {
        self.row_bytes() * self.rows * self.tensor.dims[2]
    }

    /// Where in the tensor some rows are that are counted over all matrices.
    fn ranges(self, rows: Range<u32>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (u64::from(rows.start), u64::from(rows.end));
        (start / self.rows..end.div_ceil(self.rows)).map(move |expert| {
            let own = |row: u64| row.saturating_sub(expert * self.rows).min(self.rows);
            let at = |row: u64| {
                (expert * self.tensor.dims[1] + self.first + own(row)) * self.row_bytes()
            };
            at(start)..at(end)
        })
    }

    /// The bytes of these rows in the file, by expert.
    fn by_expert(self, gguf: &'a Gguf) -> impl Fn(u32) -> &'a [u8] {
        let (data, row) = (gguf.data(self.tensor), self.row_bytes());
        move |expert| {
            let start = (u64::from(expert) * self.tensor.dims[1] + self.first) * row;
            &data[start as usize..(start + self.rows * row) as usize]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gguf::write::Writer,
        ops::{
            product::{self, Epilogue},
            testing::{assert_close, each_device, random},
        },
    };
    use half::f16;

    /// Rows of two tensors give what they give apart, also where their types differ.
    #[test]
    fn stacked_rows_are_those_of_each() {
        const WIDTH: usize = 32;
        let (x, a, b) = (random(1, WIDTH), random(2, 3 * WIDTH), random(3, 5 * WIDTH));
        let halves: Vec<f16> = b.iter().copied().map(f16::from_f32).collect();
        let path = std::env::temp_dir().join(format!("stacked-{}.gguf", std::process::id()));
        let mut writer = Writer::default();
        for (name, ty, rows) in
            [("a", BlockType::F32, 3), ("b", BlockType::F32, 5), ("half b", BlockType::F16, 5)]
        {
            writer.tensor(name, ty, &[WIDTH as u64, rows]);
        }
        let data = |info: &TensorInfo, sink: &mut dyn std::io::Write| match info.name.as_str() {
            "a" => sink.write_all(bytemuck::cast_slice(&a)),
            "b" => sink.write_all(bytemuck::cast_slice(&b)),
            _ => sink.write_all(bytemuck::cast_slice(&halves)),
        };
        writer.write(&path, data).unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let rounded: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
        each_device(|t| {
            for (second, values) in [("b", &b), ("half b", &rounded)] {
                let progress = &mut |_, _| ();
                let matrix =
                    Loader::new(&gguf, &t.gpu, 0, progress).stacked(&["a", second]).unwrap();
                assert_eq!((matrix.n_in, matrix.n_out), (WIDTH as u32, 8));
                let (input, output) = (t.upload(&x, WIDTH), t.scratch(1, 8));
                t.run(|rec| {
                    product::record(rec, "stacked", &matrix, &input, &output, 1, Epilogue::Store)
                });
                let dot = |row: &[f32]| -> f64 {
                    row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                };
                let rows = a.chunks(WIDTH).chain(values.chunks(WIDTH));
                assert_close(&t.read(&output), &rows.map(dot).collect::<Vec<_>>(), 1e-5);
            }
        });
        std::fs::remove_file(&path).unwrap();
    }
}
