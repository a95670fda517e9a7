//! Rows of an embedding table by token id.

use super::{
    Tensor,
    matrix::{Matrix, PartParams},
};
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    part: PartParams,
    width: u32,
    table_rows: u32,
    n: u32,
    copies: u32,
}

const WORKGROUP: u64 = 64;

/// `y[t] = table[ids[t]]` as f32 for the first `n` of `ids` (u32); an id past the table means its
/// last row. Rows of y may be several times as wide as those of the table: they are filled with
/// copies, as streams begin (spec/architectures.md 4.5.1).
///
/// # Errors
/// Shapes that do not fit.
pub fn record(rec: &mut Recorder, table: &Matrix, ids: &Buf, y: &Tensor, n: u32) -> Result<()> {
    let copies = (y.width / table.n_in).max(1);
    y.expect("embed_rows", "y", n, copies * table.n_in)?;
    if ids.size() < u64::from(n) * 4 {
        return Err(Error::Shader(format!("embed_rows: {} bytes of ids for {n}", ids.size())));
    }
    let variant = Variant::new("embed_rows").choose("format", table.planes.format);
    for part in &table.parts {
        let params = Params {
            part: table.part_params(part),
            width: table.n_in,
            table_rows: table.n_out * table.n_expert,
            n,
            copies,
        };
        let runs = u64::from(table.planes.row_blocks(table.n_in) * table.planes.elements / 16);
        let grid = Grid::Flat((runs * u64::from(n)).div_ceil(WORKGROUP));
        let bindings = [(&part.buf).into(), ids.into(), (&y.buf).into()];
        rec.dispatch("embed_rows", &variant, &bindings, &params, grid)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::{Heap, MemoryKind},
        ops::{
            Source,
            testing::{TestDevice, each_device, in_turn},
        },
        quant::{BlockType, dequantise},
    };
    use std::iter;

    fn check(t: &TestDevice, ty: BlockType, rows: usize, width: usize) {
        let (table, values) = t.weights(ty, [1, rows, width]);
        let last = rows as u32 - 1;
        let ids = [last, 0, 1, last / 2, 0, u32::MAX];
        let ids_buf = t.gpu.alloc("ids", 24, MemoryKind::Scratch).unwrap();
        t.gpu.upload(&ids_buf, 0, bytemuck::cast_slice(&ids)).unwrap();
        let y = t.scratch(6, width);
        t.run(|rec| record(rec, &table, &ids_buf, &y, 6));
        for (id, got) in ids.iter().zip(t.read(&y).chunks(width)) {
            let row = &values[(*id).min(last) as usize * width..][..width];
            let scale = row.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            for (got, want) in got.iter().zip(row) {
                assert!((got - want).abs() <= 1e-6 * scale, "{ty} row {id}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn rows_of_every_type() {
        in_turn(BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu()), |t, ty| {
            check(t, *ty, 11, 512);
        });
        each_device(|t| {
            check(t, BlockType::F16, 11, 37);
            check(t, BlockType::F32, 3, 1);
        });
    }

    #[test]
    fn wider_rows_are_filled_with_copies() {
        each_device(|t| {
            let (table, values) = t.weights(BlockType::F16, [1, 5, 37]);
            let ids = t.gpu.alloc("ids", 12, MemoryKind::Scratch).unwrap();
            t.gpu.upload(&ids, 0, bytemuck::cast_slice(&[4, 0, 2])).unwrap();
            let y = t.scratch(3, 4 * 37);
            t.run(|rec| record(rec, &table, &ids, &y, 3));
            let want: Vec<f32> =
                [4, 0, 2].iter().flat_map(|r| values[r * 37..][..37].repeat(4)).collect();
            assert_eq!(t.read(&y), want);
        });
    }

    /// Of every exponent, up to the largest that is taken, and the one that stands for NaN. Subnormal
    /// numbers may be taken for 0.
    #[test]
    fn mxfp4_of_any_exponent() {
        let bytes: Vec<u8> = ((0..=251).chain([255]))
            .flat_map(|e| iter::once(e).chain((0..16).map(|i| i << 4 | (15 - i))))
            .collect();
        let rows = bytes.len() / 17;
        let mut values = vec![0.0; 32 * rows];
        dequantise(BlockType::Mxfp4, &bytes, &mut values).unwrap();
        each_device(|t| {
            let all = |_| bytes.as_slice();
            let source = Source { ty: BlockType::Mxfp4, rows: &all, factors: None, used: &|_| () };
            let shape = [32, rows as u32, 1];
            let table = Matrix::upload(&t.gpu, Heap::Device, "table", shape, source).unwrap();
            let ids: Vec<u32> = (0..rows as u32).collect();
            let (ids, y) = (t.upload_words(&ids), t.scratch(rows, 32));
            t.run(|rec| record(rec, &table, &ids, &y, rows as u32));
            for (i, (got, want)) in t.read(&y).iter().zip(&values).enumerate() {
                let same = got == want || (got.is_nan() && want.is_nan());
                let small = got.abs() <= want.abs() && want.abs() < 12.0 * f32::MIN_POSITIVE;
                assert!(same || small, "exponent {}: {got} is not {want}", i / 32);
            }
        });
    }

    #[test]
    fn rows_of_a_split_table() {
        let t = TestDevice::with_binding(16384);
        // One plane, three, and a table before them.
        for ty in [BlockType::F16, BlockType::Q3K, BlockType::Iq4Xs] {
            check(&t, ty, 301, 160_usize.next_multiple_of(ty.block_elements()));
        }
    }
}
