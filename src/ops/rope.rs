//! Rotary embedding on the host: sines and cosines of a step's positions, computed in f64, since
//! shaders' own lose every digit at deep positions (spec/architectures.md 1.2).

use super::Tensor;
use crate::{Error, Result, gpu::Gpu, model::rope::RopeKind};

/// The rotation of a step's heads, as the kernels take it.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Rows of (cos, sin) pairs, written by [`RopeTable::write`]; its width is `n_rot`, the
    /// number of values of a head that rotate.
    pub table: &'a Tensor,
    /// Which values pair.
    pub kind: RopeKind,
}

/// RMSNorm of each head before it rotates.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// `[head_dim]`.
    pub gamma: &'a Tensor,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Frequencies of a model's rotation, scaling included.
#[derive(Clone, Debug)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
}

impl RopeTable {
    /// `frequencies` in radians a position, one a pair; cos and sin are multiplied by
    /// `magnitude` (YaRN's m, else 1).
    pub fn new(frequencies: Vec<f64>, magnitude: f64) -> Self {
        Self { frequencies, magnitude }
    }

    /// Values of a head that rotate: the width of a step's table.
    pub fn n_rot(&self) -> u32 {
        2 * self.frequencies.len() as u32
    }

    /// A table with room for `rows` positions.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn tensor(&self, gpu: &Gpu, rows: u32) -> Result<Tensor> {
        Tensor::scratch(gpu, "rope", rows, self.n_rot())
    }

    /// Writes the rows of positions `first .. first + n` to `table`, before what is submitted
    /// next.
    ///
    /// # Errors
    /// [`Error::Shader`] when they do not fit; [`Error::Device`] when the device has failed.
    pub fn write(&self, gpu: &Gpu, first: u32, n: u32, table: &Tensor) -> Result<()> {
        self.write_every(gpu, first, 1, n, table)
    }

    /// Writes the rows of the `n` positions `first`, `first + step`, ... to `table`, before what
    /// is submitted next.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_every(
        &self,
        gpu: &Gpu,
        first: u32,
        step: u32,
        n: u32,
        table: &Tensor,
    ) -> Result<()> {
        table.expect("rope", "table", n, self.n_rot())?;
        gpu.upload(&table.buf, 0, bytemuck::cast_slice(&self.rows(first, step, n)))
    }

    /// What [`Self::write_every`] writes: `[n][n_rot/2]` pairs (cos, sin).
    pub fn rows(&self, first: u32, step: u32, n: u32) -> Vec<[f32; 2]> {
        (0..n)
            .flat_map(|t| {
                let position = f64::from(first) + f64::from(t) * f64::from(step);
                self.frequencies.iter().map(move |f| {
                    let (sin, cos) = (position * f).sin_cos();
                    [(cos * self.magnitude) as f32, (sin * self.magnitude) as f32]
                })
            })
            .collect()
    }
}

impl Rotation<'_> {
    /// Checks the table against `n` tokens with heads of `head_dim`; returns `n_rot`.
    pub(super) fn check(&self, op: &str, n: u32, head_dim: u32) -> Result<u32> {
        let n_rot = self.table.width;
        self.table.expect(op, "rope", n, n_rot)?;
        if n_rot.is_multiple_of(2) && n_rot <= head_dim {
            return Ok(n_rot);
        }
        Err(Error::Shader(format!("{op}: {n_rot} values of a head of {head_dim} cannot rotate")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{reference::rope::frequencies, testing::each_device};

    /// cos and sin by the power series after taking whole turns off in exact integer steps: no
    /// use of the standard library's argument reduction.
    fn series(angle: f64) -> (f64, f64) {
        let turn = std::f64::consts::TAU;
        let x = angle - (angle / turn).round() * turn;
        let (mut cos, mut sin, mut term) = (0.0, 0.0, 1.0);
        for k in 1..40 {
            match k % 4 {
                1 => cos += term,
                2 => sin += term,
                3 => cos -= term,
                _ => sin -= term,
            }
            term *= x / f64::from(k);
        }
        (cos, sin)
    }

    #[test]
    fn exact_at_deep_positions() {
        each_device(|t| {
            // A scaled variant (YaRN) is other frequencies: here some halved and some kept.
            let plain = frequencies(64, 1e7);
            let yarn = plain.iter().enumerate().map(|(i, f)| f / f64::from(1 + (i / 12) as u32));
            let yarn: Vec<f64> = yarn.collect();
            let positions = [0, 40, 32768, 65536, 131_071, 262_143, 1 << 21, 3 << 20];
            for (frequencies, first) in
                [&plain, &yarn].into_iter().flat_map(|f| positions.map(|first| (f, first)))
            {
                let rope = RopeTable::new(frequencies.clone(), 1.5);
                let table = rope.tensor(&t.gpu, 3).unwrap();
                rope.write(&t.gpu, first, 3, &table).unwrap();
                t.gpu.submit(&crate::gpu::Recorder::new(&t.gpu).finish().unwrap()).unwrap();
                let rows = table.read(&t.gpu, 3).unwrap();
                for (i, pair) in rows.chunks(2).enumerate() {
                    let position = first + (i / 32) as u32;
                    let (cos, sin) = series(f64::from(position) * frequencies[i % 32]);
                    assert!((f64::from(pair[0]) - 1.5 * cos).abs() < 2e-7, "cos at {position}");
                    assert!((f64::from(pair[1]) - 1.5 * sin).abs() < 2e-7, "sin at {position}");
                }
            }
        });
    }

    #[test]
    fn a_table_too_small_is_refused() {
        each_device(|t| {
            let rope = RopeTable::new(vec![1.0, 0.5], 1.0);
            let table = rope.tensor(&t.gpu, 2).unwrap();
            assert!(rope.write(&t.gpu, 0, 3, &table).is_err());
            let r = Rotation { table: &table, kind: RopeKind::Neox };
            assert!(r.check("op", 2, 4).is_ok());
            assert!(r.check("op", 2, 2).is_err());
            assert!(r.check("op", 3, 4).is_err());
        });
    }
}
