//! Mixture of experts (spec/architectures.md 1.5):
//! `y[t] += sum_s w[t][s] * down_e(silu(gate_e x[t]) * (up_e x[t]))`, e the expert of slot s.
//!
//! Few tokens: each pair (token, slot) is a mat-vec of its own, since they hardly share experts.
//! More: the pairs are sorted by expert on the device, so that each expert's weights are read once
//! for all its tokens.

use super::{
    Matrix, MatrixPart, Routing, Tensor,
    gated_product::GateUp,
    product::{
        Epilogue, FEW, MAT_VEC, MAT_VEC_ROWS, Order, Pairs, Product, Rows, mat_vec_lanes, tile_of_x,
    },
    routing::SharedExpert,
};
use crate::{
    Error, Result,
    gpu::{Bind, Buf, Caps, Grid, Memory, MemoryKind, Recorder},
    shader::Variant,
};

/// The routed experts of a layer.
#[derive(Clone, Debug)]
pub struct Experts {
    /// Stack of `n_expert` gate and up projections, `n_embd` to `n_ff`.
    pub gate_up: GateUp,
    /// Stack of down projections, `n_ff` to `n_embd`.
    pub down: Matrix,
}

/// What one MoE layer keeps between its dispatches; shared by all layers of equal shape.
#[derive(Clone, Debug)]
pub struct ExpertScratch {
    /// `[pair][n_ff]`: the experts' activations.
    h: Tensor,
    /// `[pair][n_embd]`: their outputs.
    d: Tensor,
    /// u32 `[n_expert]`: pairs an expert.
    counts: Buf,
    /// u32 `[pair]`: the pairs sorted by expert.
    sorted: Buf,
    /// `vec4<u32>` `[1 + tiles]`: the tiles of them.
    tiles: Buf,
    /// Tokens worked on at a time.
    tokens: u32,
}

/// Pairs in the smallest tile: there are the most of these.
const SMALLEST_TILE: u32 = 16;
const WORKGROUP: u64 = 64;
/// Most slots of `expert_down.wgsl`.
const MOST_SLOTS: u32 = 32;

/// Slots that `expert_down.wgsl` has workgroup memory for: `k`, or a few more.
fn slots(k: u32, lanes: u32) -> u32 {
    k.next_multiple_of(MAT_VEC / lanes)
}

/// Whether the sums of `k` experts' rows have room in workgroup memory.
fn sums_fit(down: &Matrix, k: u32, caps: &Caps) -> bool {
    let (lanes, subgroup) = mat_vec_lanes(down, caps);
    let partial = if subgroup || lanes == 1 { 0 } else { lanes };
    k <= MOST_SLOTS
        && slots(k, lanes) * MAT_VEC_ROWS * 4 * (partial + 1) <= caps.max_workgroup_memory
}

impl ExpertScratch {
    /// Room for `max_n` tokens of `k` experts, or for as many as a binding holds: the others then
    /// follow in a second pass.
    ///
    /// # Errors
    /// [`Error::Device`] when one token exceeds a binding or memory is short.
    pub fn new(
        gpu: &dyn Memory,
        max_n: u32,
        k: u32,
        n_expert: u32,
        n_ff: u32,
        n_embd: u32,
    ) -> Result<Self> {
        let widest = u64::from(n_ff.max(n_embd).max(1)) * u64::from(k.max(1)) * 4;
        let tokens = u64::from(max_n).min(gpu.caps().max_binding / widest).max(1) as u32;
        let pairs = tokens * k;
        let words = |label, n: u32| gpu.alloc(label, u64::from(n) * 4, MemoryKind::Scratch);
        Ok(Self {
            h: Tensor::factor(gpu, "expert activations", pairs, n_ff, FEW * k)?,
            d: Tensor::scratch(gpu, "expert outputs", pairs, n_embd)?,
            counts: words("expert counts", n_expert)?,
            sorted: words("expert pairs", pairs)?,
            tiles: words("expert tiles", 4 * (1 + most_tiles(pairs, n_expert, SMALLEST_TILE)))?,
            tokens,
        })
    }
}

/// How many tiles `pairs` can need: the full ones, and one that is not full an expert.
fn most_tiles(pairs: u32, n_expert: u32, size: u32) -> u32 {
    pairs / size + pairs.min(n_expert)
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct ListParams {
    first: u32,
    n: u32,
    n_expert: u32,
    tile: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct CombineParams {
    first: u32,
    n: u32,
    k: u32,
    width: u32,
}

/// Adds to the first `n` rows of y (`n_embd` values) what the experts that `routing` names make of
/// those of x (`n_embd` values), and what its shared expert has made.
///
/// # Errors
/// Shapes that do not fit each other.
pub fn record(
    rec: &mut Recorder,
    experts: &Experts,
    x: &Tensor,
    routing: &Routing,
    scratch: &ExpertScratch,
    y: &Tensor,
    n: u32,
) -> Result<()> {
    let op = "experts";
    let Experts { gate_up, down } = experts;
    x.expect(op, "x", n, gate_up.n_in())?;
    y.expect(op, "y", n, down.n_out)?;
    let k = routing.weights.width;
    routing.weights.expect(op, "routing", n, k)?;
    scratch.d.expect(op, "scratch", k, down.n_out)?;
    if let Some(SharedExpert { gate, out }) = &routing.shared {
        gate.expect(op, "shared gate", n, 1)?;
        out.expect(op, "shared out", n, down.n_out)?;
    }
    if gate_up.n_ff() != down.n_in || gate_up.n_expert() != down.n_expert {
        return Err(Error::Shader(format!(
            "{op}: gate and up are {} x {} rows, down takes {} values of {}",
            gate_up.n_expert(),
            gate_up.n_ff(),
            down.n_in,
            down.n_expert
        )));
    }
    for first in (0..n).step_by(scratch.tokens as usize) {
        let (few, n) = (n <= FEW, scratch.tokens.min(n - first));
        Pass { experts, x, routing, scratch, y, first, n, k, few }.record(rec)?;
    }
    Ok(())
}

/// `n` tokens from `first` on.
struct Pass<'a> {
    experts: &'a Experts,
    x: &'a Tensor,
    routing: &'a Routing,
    scratch: &'a ExpertScratch,
    y: &'a Tensor,
    first: u32,
    n: u32,
    k: u32,
    /// Whether all tokens of the step, not only of this pass, are few: results do not depend on
    /// the size of the scratch.
    few: bool,
}

impl Pass<'_> {
    fn record(&self, rec: &mut Recorder) -> Result<()> {
        let Self { scratch, first, k, .. } = *self;
        let Experts { gate_up, down } = self.experts;
        let n = self.n * k;
        let order = if self.few { Order::Given } else { self.sort(rec)? };
        let of_tokens =
            Pairs { ids: &self.routing.ids, first: first * k, x_first: first, share: k };
        let rows = Rows::Pairs(of_tokens, order);
        gate_up.record_rows(rec, "expert_gate_up", self.x, &scratch.h, n, rows)?;
        let of_h = Pairs { x_first: 0, share: 1, ..of_tokens };
        let rows = Rows::Pairs(of_h, order);
        let (op, epilogue) = ("expert_down", Epilogue::Store);
        let each = Product { op, w: down, x: &scratch.h, y: &scratch.d, n, epilogue, rows };
        match down.parts.as_slice() {
            // The rows of a token's experts are all in one place.
            [part] if self.few && sums_fit(down, k, rec.gpu().caps()) => {
                let rows = Rows::Pairs(Pairs { share: k, ..of_h }, Order::Given);
                self.down_and_combine(rec, part, &Product { y: self.y, n: self.n, rows, ..each })
            }
            _ => {
                each.record(rec)?;
                self.combine(rec)
            }
        }
    }

    /// Few tokens: all slots of one and their weighted sum in one dispatch.
    fn down_and_combine(
        &self,
        rec: &mut Recorder,
        part: &MatrixPart,
        product: &Product<'_>,
    ) -> Result<()> {
        let (lanes, subgroup) = mat_vec_lanes(product.w, rec.gpu().caps());
        let variant = Variant::new("expert_down")
            .choose("format", product.w.planes.format)
            .flag("odd", product.w.odd())
            .flag("whole", product.whole().is_some())
            .flag("shared", self.routing.shared.is_some())
            .flag("subgroup", subgroup)
            .number("LANES", lanes)
            .number("SLOTS", slots(self.k, lanes));
        let tile = if lanes == 1 { MAT_VEC * MAT_VEC_ROWS } else { MAT_VEC_ROWS };
        let params = product.params(part, tile);
        let mut bindings: Vec<Bind<'_>> = vec![
            (&part.buf).into(),
            product.whole().unwrap_or(&product.x.buf).into(),
            (&product.y.buf).into(),
            (&self.routing.ids).into(),
            (&self.routing.weights.buf).into(),
        ];
        bindings.extend(self.shared());
        let grid = Grid::Flat(u64::from(params.row_tiles) * u64::from(self.n));
        rec.dispatch(product.op, &variant, &bindings, &params, grid)
    }

    /// Sorts the pairs by expert.
    fn sort<'a>(&'a self, rec: &mut Recorder) -> Result<Order<'a>> {
        let ExpertScratch { counts, sorted, tiles, .. } = self.scratch;
        let n_expert = self.experts.down.n_expert;
        let n = self.n * self.k;
        let (caps, mean) = (rec.gpu().caps(), n.div_ceil(n_expert));
        // Cooperative matrices leave out what a tile is not full of: one should do for most experts.
        let size = tile_of_x(if caps.matrices.is_some() { 2 * mean } else { mean }, caps);
        let params = ListParams { first: self.first * self.k, n, n_expert, tile: size };
        let ids = &self.routing.ids;
        let grid = Grid::Flat(n_expert.into());
        let count = Variant::new("expert_counts");
        rec.dispatch("expert_lists", &count, &[ids.into(), counts.into()], &params, grid)?;
        let list = Variant::new("expert_lists");
        let bindings = [ids.into(), counts.into(), sorted.into(), tiles.into()];
        rec.dispatch("expert_lists", &list, &bindings, &params, grid)?;
        Ok(Order::ByExpert { sorted, tiles, size, most: most_tiles(n, n_expert, size) })
    }

    /// Adds the weighted outputs to y.
    fn combine(&self, rec: &mut Recorder) -> Result<()> {
        let width = self.y.width;
        let params = CombineParams { first: self.first, n: self.n, k: self.k, width };
        let mut bindings: Vec<Bind<'_>> = vec![
            (&self.scratch.d.buf).into(),
            (&self.routing.weights.buf).into(),
            (&self.y.buf).into(),
        ];
        bindings.extend(self.shared());
        let grid = Grid::Flat((u64::from(self.n) * u64::from(width)).div_ceil(WORKGROUP));
        let variant = Variant::new("expert_combine").flag("shared", self.routing.shared.is_some());
        rec.dispatch("expert_combine", &variant, &bindings, &params, grid)
    }

    /// What the flag `shared` binds.
    fn shared(&self) -> impl Iterator<Item = Bind<'_>> {
        let shared = self.routing.shared.iter();
        shared.flat_map(|s| [&s.gate, &s.out].map(|tensor| Bind::from(&tensor.buf)))
    }
}

#[cfg(test)]
mod tests;
