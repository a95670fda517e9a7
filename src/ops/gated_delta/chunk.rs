//! The recurrence in chunks of 64 tokens (spec/architectures.md 1.4.2): all that does not depend
//! on the state for many chunks at once, then chunk after chunk; by cooperative matrices where there
//! are any.

use super::{GatedDelta, Heads, Inputs, step};
use crate::{
    Result,
    gpu::{Buf, Caps, Grid, Matrices, Memory, MemoryKind, Recorder},
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
    /// `[V][chunk]`: matrices as `shared/delta_parts.wgsl` or `shared/delta_halves.wgsl` has them.
    parts: Buf,
    /// f32 `[V][chunk]`: scale of each token's k, but for cooperative matrices, and the decay over
    /// the chunk.
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
        let bytes = |chunks: u32, each: u32| {
            u64::from(shape.value_heads) * u64::from(chunks) * u64::from(each)
        };
        let (part, scale) = match matrices(gpu.caps(), shape) {
            None => ((3 * shape.head_dim + CHUNK) * CHUNK * 4, (CHUNK + 1) * 4),
            Some(_) => ((3 * shape.head_dim + 2 * CHUNK) * CHUNK * 2, 4),
        };
        let room = gpu.caps().max_binding / bytes(1, part).max(1);
        let chunks =
            max_n.div_ceil(CHUNK).min(MAX_CHUNKS).min(room.min(u64::from(u32::MAX)) as u32);
        if max_n <= super::MAX_STEPS || chunks == 0 {
            return Ok(Self(None));
        }
        let alloc = |label, bytes| gpu.alloc(label, bytes, MemoryKind::Scratch);
        Ok(Self(Some(Prepared {
            parts: alloc("gated delta chunks", bytes(chunks, part))?,
            scales: alloc("gated delta scales", bytes(chunks, scale))?,
            chunks,
        })))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The cooperative matrices that take `shape`: a state of whole chunks' rows, a copy of 32 columns of
/// which fits workgroup memory.
fn matrices(caps: &Caps, shape: &GatedDelta) -> Option<Matrices> {
    caps.matrices.filter(|m| matches!(shape.head_dim, 64 | 128) && m.lanes <= 128)
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
    let (prepare, scan, columns) = match matrices(rec.gpu().caps(), shape) {
        Some(Matrices { edge, lanes }) => {
            let variant = |shader| {
                let d = shape.head_dim;
                Variant::new(shader).number("D", d).number("EDGE", edge).number("LANES", lanes)
            };
            (variant("coop_delta_chunk"), variant("coop_delta_scan"), 32)
        }
        None => {
            // Quads of columns of the state in one workgroup, so that they and N fit its memory.
            let quads = if shape.head_dim > 128 { 2 } else { 4 };
            let scan = Variant::new("gated_delta_scan").number("COLUMNS", quads);
            (Variant::new("gated_delta_chunk"), scan, 4 * quads)
        }
    };
    let tiles = u64::from(shape.head_dim / columns);
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
