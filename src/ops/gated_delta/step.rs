//! The recurrence token by token: one dispatch, the state read once and written once.

use super::{GatedDelta, Heads, Inputs};
use crate::{
    Result,
    gpu::{Grid, Recorder},
    ops::{Tensor, Tokens},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    heads: Heads,
    first: u32,
    end: u32,
}

pub(super) fn record(
    rec: &mut Recorder,
    shape: &GatedDelta,
    inputs: &Inputs<'_>,
    state: &Tensor,
    o: &Tensor,
    tokens: Tokens,
) -> Result<()> {
    shape.expect(inputs, state, o, tokens.end())?;
    let d = shape.head_dim;
    let (variant, columns) = if rec.gpu().caps().software {
        let columns = d.min(64);
        (Variant::new("gated_delta_columns").number("WG", columns), columns)
    } else {
        // An invocation holds 4 x 4 values of the state; a workgroup all rows of some columns.
        let quads = (d / 4).min(1024 / d);
        let variant = Variant::new("gated_delta_step").number("D", d).number("COLUMNS", quads);
        (variant, 4 * quads)
    };
    let params = Params { heads: shape.heads(), first: tokens.first, end: tokens.end() };
    let bindings = [
        (&inputs.u.buf).into(),
        (&inputs.gates.buf).into(),
        (&inputs.dt_bias.buf).into(),
        (&inputs.ssm_a.buf).into(),
        (&state.buf).into(),
        (&o.buf).into(),
    ];
    let workgroups = u64::from(shape.value_heads) * u64::from(d / columns);
    rec.dispatch("gated_delta_step", &variant, &bindings, &params, Grid::Flat(workgroups))
}
