//! `y = W x`: mat-vec for up to 8 rows of x, tiled product for more
//! (spec/architectures.md, matrix convention).

use super::{
    Tensor, f16_rows,
    matrix::{Matrix, MatrixPart, PartParams},
};
use crate::{
    Error, Result,
    gpu::{Bind, Buf, Caps, Grid, Matrices, Recorder},
    shader::Variant,
};
use std::ops::Range;

/// What happens to each dot product v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Epilogue {
    /// `y = v`
    Store = 0,
    /// `y += v`
    Add = 1,
    /// `y = silu(v)`
    Silu = 2,
    /// `y *= v`
    Multiply = 3,
    /// Rows of W alternate gate and up, y has half as many: `y = silu(v_gate) v_up`
    Gated = 4,
}

/// Rows of x up to which the weights are read once for all and the mat-vec is used.
pub(crate) const FEW: u32 = 8;

/// `y[t] = epilogue(W x[t])` for the first `n` rows. x has rows of `w.n_in` values, y of `w.n_out`
/// (half of it for [`Epilogue::Gated`]).
///
/// # Errors
/// A stack of experts, or shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    op: &'static str,
    w: &Matrix,
    x: &Tensor,
    y: &Tensor,
    n: u32,
    epilogue: Epilogue,
) -> Result<()> {
    if w.n_expert != 1 {
        return Err(Error::Shader(format!("{op}: a stack of {} matrices", w.n_expert)));
    }
    x.expect(op, "x", n, w.n_in)?;
    Product { op, w, x, y, n, epilogue, rows: Rows::Same }.record(rec)
}

/// A product of `n` rows of y.
pub(super) struct Product<'a> {
    pub(super) op: &'static str,
    pub(super) w: &'a Matrix,
    pub(super) x: &'a Tensor,
    pub(super) y: &'a Tensor,
    pub(super) n: u32,
    pub(super) epilogue: Epilogue,
    pub(super) rows: Rows<'a>,
}

/// Which row of x, and which matrix of a stack, makes a row of y.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// The row of the same number, the only matrix.
    Same,
    /// Row r of y is a pair (token, slot) that chose an expert.
    Pairs(Pairs<'a>, Order<'a>),
}

/// What pairs (token, slot) chose, and where their rows of x are.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    /// u32 expert of each pair.
    pub(super) ids: &'a Buf,
    /// Pair that row 0 of y belongs to.
    pub(super) first: u32,
    /// Row of x that belongs to it.
    pub(super) x_first: u32,
    /// Pairs that have a row of x in common.
    pub(super) share: u32,
}

/// In what order pairs are worked on.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    /// One by one, by mat-vec.
    Given,
    /// Expert by expert in tiles (`expert_lists.wgsl`), by tiled product.
    ByExpert {
        /// u32 pairs, sorted.
        sorted: &'a Buf,
        /// The tiles of them.
        tiles: &'a Buf,
        /// Pairs in a tile.
        size: u32,
        /// Tiles there can be.
        most: u32,
    },
}

/// `struct Params` of `shared/product.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
pub(super) struct Params {
    part: PartParams,
    n_in: u32,
    n_out: u32,
    n: u32,
    epilogue: u32,
    n_expert: u32,
    first: u32,
    x_first: u32,
    share: u32,
    pub(super) row_tiles: u32,
}

/// Weights that a shader dequantises at a time.
const RUN: u32 = 16;
/// Rows of W in a tile of the tiled product.
const TILE_ROWS: u32 = 64;
/// The same where cooperative matrices make it.
const MATRIX_TILE_ROWS: u32 = 128;
/// Invocations of a mat-vec workgroup.
pub(super) const MAT_VEC: u32 = 64;
/// Rows of W that one of them works on.
pub(super) const MAT_VEC_ROWS: u32 = 4;

impl Product<'_> {
    /// Adds the dispatches, one a part of W. The caller has checked x.
    ///
    /// # Errors
    /// No room in y, or too many workgroups.
    pub(super) fn record(&self, rec: &mut Recorder) -> Result<()> {
        let Self { op, w, n, .. } = *self;
        let gated = self.epilogue == Epilogue::Gated;
        self.y.expect(op, "y", n, if gated { w.n_out / 2 } else { w.n_out })?;
        if n == 0 {
            return Ok(());
        }
        let x = self.whole().unwrap_or(&self.x.buf);
        // How many tiles of W's rows there are along the rows of y.
        let ((variant, tile), x, y_tiles) = match self.rows {
            Rows::Same if n <= FEW => (self.mat_vec(n.next_power_of_two(), rec.gpu().caps()), x, 1),
            Rows::Same => {
                let size = tile_of_x(n, rec.gpu().caps());
                let (kernel, x) = self.tiled(rec, size, 0..n)?;
                (kernel, x, n.div_ceil(size))
            }
            Rows::Pairs(_, Order::Given) => (self.mat_vec(1, rec.gpu().caps()), x, n),
            Rows::Pairs(pairs, Order::ByExpert { size, most, .. }) => {
                let x_rows = pairs.x_first..pairs.x_first + n.div_ceil(pairs.share);
                let (kernel, x) = self.tiled(rec, size, x_rows)?;
                (kernel, x, most)
            }
        };
        for part in &w.parts {
            let mut bindings: Vec<Bind<'_>> =
                vec![(&part.buf).into(), x.into(), (&self.y.buf).into()];
            match self.rows {
                Rows::Same => (),
                Rows::Pairs(pairs, Order::Given) => bindings.push(pairs.ids.into()),
                Rows::Pairs(_, Order::ByExpert { sorted, tiles, .. }) => {
                    bindings.extend([Bind::from(sorted), Bind::from(tiles)]);
                }
            }
            let params = self.params(part, tile);
            let grid = Grid::Flat(u64::from(params.row_tiles) * u64::from(y_tiles));
            rec.dispatch(op, &variant, &bindings, &params, grid)?;
        }
        Ok(())
    }

    /// The variant for `columns` rows of x, and its tile of W's rows.
    fn mat_vec(&self, columns: u32, caps: &Caps) -> (Variant, u32) {
        let (lanes, subgroup) = mat_vec_lanes(self.w, caps);
        // Sums of rows by columns take registers.
        let rows = if columns == FEW { MAT_VEC_ROWS / 2 } else { MAT_VEC_ROWS };
        let variant = self
            .variant("mat_vec")
            .flag("odd", self.w.odd())
            .flag("whole", self.whole().is_some())
            .flag("subgroup", subgroup)
            .number("N", columns)
            .number("LANES", lanes)
            .number("ROWS", rows);
        (variant, MAT_VEC / lanes * rows)
    }

    /// The variant for tiles of `size` rows of x, its tile of W's rows, and what it takes for x,
    /// made of `x_rows` if need be.
    fn tiled(
        &self,
        rec: &mut Recorder,
        size: u32,
        x_rows: Range<u32>,
    ) -> Result<((Variant, u32), &Buf)> {
        let matrices = rec.gpu().caps().matrices.zip(self.x.f16.as_ref());
        // Not of F32: who stores weights in it wants more than f16 keeps, of the router's, as a rule.
        match matrices.filter(|_| self.w.in_f16) {
            None => {
                let variant = self.variant("tile_product").flag("odd", self.w.odd());
                Ok(((variant.number("TM", size), TILE_ROWS), &self.x.buf))
            }
            Some((Matrices { edge, lanes }, x)) => {
                f16_rows::record(rec, self.x, x, x_rows)?;
                let variant = self.variant("coop_product").number("TM", size);
                let variant = variant.number("EDGE", edge).number("LANES", lanes);
                Ok(((variant, MATRIX_TILE_ROWS), x))
            }
        }
    }

    /// x as whole numbers, where it is there and this product is by mat-vec and of bytes.
    pub(super) fn whole(&self) -> Option<&Buf> {
        let few = match self.rows {
            Rows::Same => self.n <= FEW,
            Rows::Pairs(_, order) => matches!(order, Order::Given),
        };
        self.x.whole.as_ref().filter(|_| few && self.w.ty.block_elements() > 1)
    }

    fn variant(&self, shader: &'static str) -> Variant {
        Variant::new(shader)
            .choose("format", self.w.planes.format)
            .flag("experts", matches!(self.rows, Rows::Pairs(..)))
    }

    pub(super) fn params(&self, part: &MatrixPart, tile: u32) -> Params {
        // The rows of any expert may lie in any part.
        let (rows, first, x_first, share) = match self.rows {
            Rows::Same => (part.rows, 0, 0, 1),
            Rows::Pairs(p, _) => (self.w.n_out, p.first, p.x_first, p.share),
        };
        Params {
            part: self.w.part_params(part),
            n_in: self.w.n_in,
            n_out: self.w.n_out,
            n: self.n,
            epilogue: self.epilogue as u32,
            n_expert: self.w.n_expert,
            first,
            x_first,
            share,
            row_tiles: rows.div_ceil(tile),
        }
    }
}

/// Invocations that share a row in the mat-vec: by the whole matrix, never by a part of it, so that
/// sums do not depend on the split. And whether they are the invocations of a subgroup.
pub(super) fn mat_vec_lanes(w: &Matrix, caps: &Caps) -> (u32, bool) {
    if caps.software {
        return (1, false);
    }
    if let Some(size) = caps.subgroup_size.filter(|size| MAT_VEC.is_multiple_of(*size)) {
        return (size, true);
    }
    // Few rows: more invocations on each, to fill the device.
    let most = if w.n_out < 1024 { 64 } else { 32 };
    (w.n_in.div_ceil(RUN).next_power_of_two().clamp(8, most), false)
}

/// Rows of x in a tile: the largest that the device has room for and `n` rows fill.
pub(super) fn tile_of_x(n: u32, caps: &Caps) -> u32 {
    let fits = |tile: &u32| (tile + TILE_ROWS) * 2 * RUN * 4 <= caps.max_workgroup_memory;
    let filled = |tile: &u32| *tile / 2 < n;
    [64, 32].into_iter().filter(fits).find(filled).unwrap_or(16)
}

#[cfg(test)]
mod tests;
