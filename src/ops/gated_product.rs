//! The first half of a gated FFN: `h = silu(gate x) * (up x)` (spec/architectures.md 1.5).

use super::{
    Matrix, Source, Tensor,
    matrix::Shape,
    product::{Epilogue, Product, Rows},
    quantise,
};
use crate::{
    Error, Result,
    gpu::{Gpu, Heap, Recorder},
    quant::BlockType,
};
use std::ops::Range;

/// The gate and up projections of a gated FFN, or of a stack of experts. Where both are stored the
/// same way, their rows alternate in one matrix, so that one product makes h.
#[derive(Clone, Debug)]
pub struct GateUp(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Rows gate 0, up 0, gate 1, up 1 …
    Merged(Matrix),
    /// Of different types.
    Apart { gate: Matrix, up: Matrix },
}

/// What the matrices are made from.
enum Shapes {
    Merged(Shape),
    Apart(Shape, Shape),
}

impl GateUp {
    /// Both in one matrix.
    #[cfg(test)]
    pub(super) fn of(both: Matrix) -> Self {
        Self(Kind::Merged(both))
    }

    /// Uploads `n_expert` (1: a plain FFN) pairs of matrices of `n_ff` rows of `n_in` weights to
    /// `heap`.
    ///
    /// # Errors
    /// As [`Matrix::upload`].
    pub fn upload(
        gpu: &Gpu,
        heap: Heap,
        label: &str,
        [n_in, n_ff, n_expert]: [u32; 3],
        gate: Source<'_>,
        up: Source<'_>,
    ) -> Result<Self> {
        gate.check(label, n_in, n_ff, n_expert)?;
        up.check(label, n_in, n_ff, n_expert)?;
        let row = |row: u32| {
            if row.is_multiple_of(2) { gate.row(row / 2, n_ff) } else { up.row(row / 2, n_ff) }
        };
        let used = |rows: Range<u32>| {
            (gate.used)(rows.start / 2..rows.end / 2);
            (up.used)(rows.start / 2..rows.end / 2);
        };
        Ok(Self(match Self::shapes([gate.ty, up.ty], n_in, n_ff, n_expert) {
            Shapes::Merged(both) => Kind::Merged(both.upload(gpu, heap, label, &row, &used)?),
            Shapes::Apart(first, second) => Kind::Apart {
                gate: first.upload(gpu, heap, label, &|row| gate.row(row, n_ff), gate.used)?,
                up: second.upload(gpu, heap, label, &|row| up.row(row, n_ff), up.used)?,
            },
        }))
    }

    /// The matrices that are made of a pair of types `ty`.
    fn shapes(ty: [BlockType; 2], n_in: u32, n_ff: u32, n_expert: u32) -> Shapes {
        let [gate, up] = ty;
        let shape = |ty, n_out, together| Shape { ty, n_in, n_out, n_expert, together };
        match gate == up {
            true => Shapes::Merged(shape(gate, 2 * n_ff, 2)),
            false => Shapes::Apart(shape(gate, n_ff, 1), shape(up, n_ff, 1)),
        }
    }

    /// Bytes on a device, of a pair of types `ty`.
    ///
    /// # Errors
    /// As of [`Matrix::upload`], but for memory.
    pub(crate) fn planned_bytes(
        label: &str,
        ty: [BlockType; 2],
        [n_in, n_ff, n_expert]: [u32; 3],
        max_binding: u64,
    ) -> Result<u64> {
        match Self::shapes(ty, n_in, n_ff, n_expert) {
            Shapes::Merged(both) => both.bytes(label, max_binding),
            Shapes::Apart(gate, up) => {
                Ok(gate.bytes(label, max_binding)? + up.bytes(label, max_binding)?)
            }
        }
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Merged(both) => both.bytes(),
            Kind::Apart { gate, up } => gate.bytes() + up.bytes(),
        }
    }

    /// Values of x.
    pub fn n_in(&self) -> u32 {
        match &self.0 {
            Kind::Merged(m) | Kind::Apart { gate: m, .. } => m.n_in,
        }
    }

    /// Values of h.
    pub fn n_ff(&self) -> u32 {
        match &self.0 {
            Kind::Merged(both) => both.n_out / 2,
            Kind::Apart { gate, .. } => gate.n_out,
        }
    }

    /// Experts, 1 for a plain FFN.
    pub fn n_expert(&self) -> u32 {
        match &self.0 {
            Kind::Merged(m) | Kind::Apart { gate: m, .. } => m.n_expert,
        }
    }

    /// Makes the first `n` rows of h from `rows` of x, which the caller has checked.
    pub(super) fn record_rows(
        &self,
        rec: &mut Recorder,
        op: &'static str,
        x: &Tensor,
        h: &Tensor,
        n: u32,
        rows: Rows<'_>,
    ) -> Result<()> {
        let mut product = |w, epilogue| Product { op, w, x, y: h, n, epilogue, rows }.record(rec);
        match &self.0 {
            Kind::Merged(both) => product(both, Epilogue::Gated)?,
            Kind::Apart { gate, up } => {
                product(gate, Epilogue::Silu)?;
                product(up, Epilogue::Multiply)?;
            }
        }
        quantise::record(rec, h, n)
    }
}

/// `h[t] = silu(gate x[t]) * (up x[t])` for the first `n` rows.
///
/// # Errors
/// A stack of experts, or shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    op: &'static str,
    gate_up: &GateUp,
    x: &Tensor,
    h: &Tensor,
    n: u32,
) -> Result<()> {
    if gate_up.n_expert() != 1 {
        return Err(Error::Shader(format!("{op}: a stack of {} matrices", gate_up.n_expert())));
    }
    x.expect(op, "x", n, gate_up.n_in())?;
    gate_up.record_rows(rec, op, x, h, n, Rows::Same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ops::product::FEW,
        ops::testing::{Stored, TestDevice, assert_close, each_device, multiply, random, silu},
        quant::BlockType,
    };

    fn check(t: &TestDevice, [gate, up]: [BlockType; 2], n_in: usize, n_ff: usize, n: usize) {
        let (gate, up) =
            (Stored::new(gate, 1, [1, n_ff, n_in]), Stored::new(up, 2, [1, n_ff, n_in]));
        let gate_up = gate.with(|g| {
            up.with(|u| {
                GateUp::upload(&t.gpu, Heap::Device, "ffn", [n_in as u32, n_ff as u32, 1], g, u)
                    .unwrap()
            })
        });
        let x = random(n as u64, n * n_in);
        let (x_t, h) = (t.factor(&x, n_in), t.factor_scratch(n, n_ff));
        t.run(|rec| record(rec, "test", &gate_up, &x_t, &h, n as u32));
        let (g, u) = (multiply(&gate.values, &x, n_in), multiply(&up.values, &x, n_in));
        let want: Vec<_> = g.iter().zip(u).map(|(g, u)| silu(*g) * u).collect();
        let whole = x_t.whole.is_some() && n <= FEW as usize;
        assert_close(&t.read(&h), &want, if whole { 1e-4 } else { 1e-5 });
        t.assert_whole(&h);
    }

    #[test]
    fn same_and_different_types() {
        each_device(|t| {
            for n in [1, 5, 12] {
                check(t, [BlockType::Q4K, BlockType::Q4K], 256, 64, n);
                check(t, [BlockType::Q8_0, BlockType::F16], 64, 35, n);
            }
            check(t, [BlockType::F32, BlockType::F32], 33, 1, 2);
        });
    }

    #[test]
    fn split_between_pairs_of_rows() {
        // 7 rows of 544 bytes a binding: a multiple of 2 keeps gate and up together.
        let t = TestDevice::with_binding(4096);
        for n in [1, 9] {
            check(&t, [BlockType::Q8_0, BlockType::Q8_0], 96, 101, n);
        }
    }
}
