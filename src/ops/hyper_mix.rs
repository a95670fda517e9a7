//! The block's input from normed streams: a gated sum (spec/architectures.md 4.5.2, "mix").

use super::Tensor;
use crate::{
    Result,
    gpu::{Bind, Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    total: u32,
    width: u32,
    streams: u32,
}

const WORKGROUP: u64 = 64;

/// `m[t] = sum_c sigmoid(gates[t][c]) * normed[t][c]` for the first `n` rows, all streams side by
/// side in a row of `normed` and `gates`; and zeros in `y`, to which the block adds what it makes
/// of m.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    (normed, gates): (&Tensor, &Tensor),
    m: &Tensor,
    y: &Tensor,
    n: u32,
) -> Result<()> {
    let width = m.width.max(1);
    let streams = normed.width / width;
    normed.expect("hyper_mix", "normed", n, streams * width)?;
    gates.expect("hyper_mix", "gates", n, normed.width)?;
    m.expect("hyper_mix", "m", n, width)?;
    y.expect("hyper_mix", "y", n, width)?;
    let total = n * width;
    let whole = m.whole(n);
    let mut bindings: Vec<_> = [normed, gates, m, y].map(|t| Bind::from(&t.buf)).into();
    bindings.extend(whole.map(Bind::from));
    let variant = Variant::new("hyper_mix").flag("whole", whole.is_some());
    let grid = Grid::Flat(u64::from(total).div_ceil(4 * WORKGROUP));
    let params = Params { total, width, streams };
    rec.dispatch("hyper_mix", &variant, &bindings, &params, grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, random},
    };

    fn check(t: &TestDevice, n: usize, streams: usize, width: usize, scale: f32) {
        let row = streams * width;
        let big = |seed| random(seed, n * row).iter().map(|v| v * scale).collect::<Vec<f32>>();
        let (normed, gates) = (big(1), big(2));
        let want = reference::hyper::mix(&normed, &gates, streams, width);
        let (normed, gates) = (t.upload(&normed, row), t.upload(&gates, row));
        let (m, y) = (t.factor_scratch(n, width), t.scratch(n, width));
        t.run(|rec| record(rec, (&normed, &gates), &m, &y, n as u32));
        assert_close(&t.read(&m), &want, 1e-5);
        t.assert_whole(&m);
        assert!(t.read(&y).iter().all(|v| *v == 0.0));
    }

    #[test]
    fn any_number_of_streams_and_widths() {
        each_device(|t| {
            for (n, streams, width) in [(1, 1, 1), (1, 4, 2560), (3, 2, 31), (301, 4, 70)] {
                check(t, n, streams, width, 3.0);
            }
        });
    }

    #[test]
    fn activations_of_a_million_stay_finite() {
        each_device(|t| check(t, 2, 4, 64, 1e6));
    }

    #[test]
    fn a_part_of_a_stream_is_refused() {
        each_device(|t| {
            let (normed, m) = (t.scratch(1, 40), t.scratch(1, 16));
            let mut rec = Recorder::new(&t.gpu);
            let e = record(&mut rec, (&normed, &normed), &m, &m, 1).unwrap_err();
            assert!(e.to_string().contains("hyper_mix: normed is 1 x 40"), "{e}");
        });
    }
}
