//! The recurrence in chunks of 64 tokens (spec/architectures.md 1.4.2): all that does not depend
//! on the state for many chunks at once, then chunk after chunk.

use super::{GatedDelta, Heads, Inputs, step};
use crate::{
    Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    ops::Tensor,
    shader::Variant,
};

/// C, tokens a chunk, as in the shaders.
const CHUNK: u32 = 64;

/// Chunks prepared by one dispatch: enough to fill a GPU, few enough to keep scratch small.
const MAX_CHUNKS: u32 = 8;

/// What the first pass leaves for the second.
#[derive(Clone, Debug)]
pub struct GatedDeltaScratch(Option<Prepared>);

#[derive(Clone, Debug)]
struct Prepared {
    /// f32 `[V][chunk][2 d_k + d_v + C][C]`: U, W, scaled q and P, each column by column.
    parts: Buf,
    /// f32 `[V][chunk][C + 1]`: scale of each token's k, then the decay over the chunk.
    scales: Buf,
    /// Chunks there is room for.
    chunks: u32,
}

impl GatedDeltaScratch {
    /// For steps of up to `max_n` tokens. Small steps need none, and where the device cannot bind
    /// even one chunk's there is none: everything goes token by token then.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new(gpu: &dyn Memory, shape: &GatedDelta, max_n: u32) -> Result<Self> {
        let values = |chunks: u32, columns: u32| {
            u64::from(shape.value_heads) * u64::from(chunks) * u64::from(columns) * 4
        };
        let part = (3 * shape.head_dim + CHUNK) * CHUNK;
        let room = gpu.caps().max_binding / values(1, part).max(1);
        let chunks =
            max_n.div_ceil(CHUNK).min(MAX_CHUNKS).min(room.min(u64::from(u32::MAX)) as u32);
        if max_n <= super::MAX_STEPS || chunks == 0 {
            return Ok(Self(None));
        }
        let alloc = |label, bytes| gpu.alloc(label, bytes, MemoryKind::Scratch);
        Ok(Self(Some(Prepared {
            parts: alloc("gated delta chunks", values(chunks, part))?,
            scales: alloc("gated delta scales", values(chunks, CHUNK + 1))?,
            chunks,
        })))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    heads: Heads,
    first: u32,
    n: u32,
    chunks: u32,
}

pub(super) fn record(
    rec: &mut Recorder,
    shape: &GatedDelta,
    inputs: &Inputs<'_>,
    state: &Tensor,
    scratch: &GatedDeltaScratch,
    o: &Tensor,
    n: u32,
) -> Result<()> {
    let Some(prepared) = &scratch.0 else {
        return step::record(rec, shape, inputs, state, o, n.into());
    };
    shape.expect(inputs, state, o, n)?;
    let heads = u64::from(shape.value_heads);
    // Columns of the state in one workgroup, so that they and N fit its memory.
    let columns = if shape.head_dim > 128 { 2 } else { 4 };
    let tiles = u64::from(shape.head_dim / 4 / columns);
    let prepare = Variant::new("gated_delta_chunk");
    let scan = Variant::new("gated_delta_scan").number("COLUMNS", columns);
    for first in (0..n).step_by((prepared.chunks * CHUNK) as usize) {
        let chunks = (n - first).div_ceil(CHUNK).min(prepared.chunks);
        let params = Params { heads: shape.heads(), first, n, chunks };
        let bindings = [
            (&inputs.u.buf).into(),
            (&inputs.gates.buf).into(),
            (&inputs.dt_bias.buf).into(),
            (&inputs.ssm_a.buf).into(),
            (&prepared.parts).into(),
            (&prepared.scales).into(),
        ];
        let grid = Grid::Flat(heads * u64::from(chunks));
        rec.dispatch("gated_delta_chunk", &prepare, &bindings, &params, grid)?;
        let bindings = [
            (&inputs.u.buf).into(),
            (&prepared.parts).into(),
            (&prepared.scales).into(),
            (&state.buf).into(),
            (&o.buf).into(),
        ];
        rec.dispatch("gated_delta_scan", &scan, &bindings, &params, Grid::Flat(heads * tiles))?;
    }
    Ok(())
}
