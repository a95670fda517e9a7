//! RMSNorm of each head, times an activation of a gate (spec/architectures.md 1.4, step 7).

use super::{Tensor, quantise, reduction_width};
use crate::{
    Result,
    gpu::{Bind, Grid, Recorder},
    shader::Variant,
};

/// What the gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `z · sigmoid(z)`: qwen3next, qwen35, qwen35moe.
    Silu,
    /// `sigmoid(z)`: qwen4exp.
    Sigmoid,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    rows: u32,
    width: u32,
    eps: f32,
}

/// `y = rms(o) · gamma · act(z)` per head for the first `n` rows. `o`, `z` and `y` are
/// `[n][heads][head width]`; `gamma` has the head's width.
///
/// # Errors
/// Shapes that do not fit, or rows that are not a whole number of heads.
#[expect(clippy::too_many_arguments)]
pub fn record(
    rec: &mut Recorder,
    o: &Tensor,
    z: &Tensor,
    gamma: &Tensor,
    y: &Tensor,
    n: u32,
    eps: f32,
    activation: Activation,
) -> Result<()> {
    let width = gamma.width.max(1);
    let heads = o.width / width;
    o.expect("gated_norm", "o", n, heads * width)?;
    z.expect("gated_norm", "z", n, o.width)?;
    y.expect("gated_norm", "y", n, o.width)?;
    let act = match activation {
        Activation::Silu => "silu",
        Activation::Sigmoid => "sigmoid",
    };
    let whole = y.whole(n).filter(|_| width.is_multiple_of(32));
    let caps = rec.gpu().caps();
    let variant = Variant::new("gated_norm")
        .flag("subgroup", caps.subgroup)
        .flag("whole", whole.is_some())
        .choose("act", act)
        .number("WG", reduction_width(width, caps));
    let rows = n * heads;
    let mut bindings: Vec<_> = [o, z, gamma, y].map(|t| Bind::from(&t.buf)).into();
    bindings.extend(whole.map(Bind::from));
    rec.dispatch(
        "gated_norm",
        &variant,
        &bindings,
        &Params { rows, width, eps },
        Grid::Flat(u64::from(rows)),
    )?;
    if whole.is_some() { Ok(()) } else { quantise::record(rec, y, n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, random},
    };

    fn check(t: &TestDevice, n: usize, heads: usize, width: usize, scale: f32, act: Activation) {
        let row = heads * width;
        let big = |seed| random(seed, n * row).iter().map(|v| v * scale).collect::<Vec<f32>>();
        let (o, z, gamma) = (big(1), big(2), random(3, width));
        let want = reference::norms::gated_norm(&o, &z, &gamma, 1e-6, act);
        let (o, z, gamma) = (t.upload(&o, row), t.upload(&z, row), t.upload(&gamma, width));
        let y = t.factor_scratch(n, row);
        t.run(|rec| record(rec, &o, &z, &gamma, &y, n as u32, 1e-6, act));
        assert_close(&t.read(&y), &want, 1e-5);
        t.assert_whole(&y);
    }

    #[test]
    fn heads_of_any_width() {
        each_device(|t| {
            for act in [Activation::Silu, Activation::Sigmoid] {
                for (n, heads, width) in [(1, 1, 1), (2, 3, 16), (5, 2, 31), (3, 32, 128)] {
                    check(t, n, heads, width, 2.0, act);
                }
            }
        });
    }

    #[test]
    fn more_heads_than_workgroups_of_one_dimension() {
        each_device(|t| check(t, 43, 7, 16, 1.0, Activation::Silu));
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| {
            check(t, 2, 2, 64, 1e6, Activation::Silu);
            check(t, 2, 2, 64, 1e6, Activation::Sigmoid);
        });
    }

    #[test]
    fn a_part_of_a_head_is_refused() {
        each_device(|t| {
            let (o, gamma) = (t.scratch(1, 40), t.scratch(1, 16));
            let mut rec = Recorder::new(&t.gpu);
            let e = record(&mut rec, &o, &o, &gamma, &o, 1, 1e-6, Activation::Silu).unwrap_err();
            assert!(e.to_string().contains("gated_norm: o is 1 x 40"), "{e}");
        });
    }
}
