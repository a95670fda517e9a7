//! Queries before attention: optional RMSNorm of each head, then the rotation
//! (spec/architectures.md 1.2, 1.3 steps 3 and 4). Keys go the same way in `kv_write`.

use super::{
    Tensor, reduction_width,
    rope::{HeadNorm, Rotation},
};
use crate::{
    Result,
    gpu::{Grid, Recorder},
    model::rope::RopeKind,
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    rows: u32,
    heads: u32,
    head_dim: u32,
    n_rot: u32,
    x_token: u32,
    x_head: u32,
    eps: f32,
}

/// Heads inside the rows of a tensor: `count` of them, `stride` values apart, the first at 0.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Heads a token.
    pub count: u32,
    /// Values from one head to the next.
    pub stride: u32,
}

/// `y[t][h] = rotate(norm(x[t][h]))` for the heads of the first `n` rows of `x`. `y` is dense:
/// its width is `heads.count * head_dim`; `heads.stride` may be larger than `head_dim`.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    (x, heads): (&Tensor, Heads),
    norm: Option<HeadNorm<'_>>,
    rotation: Rotation<'_>,
    y: &Tensor,
    n: u32,
) -> Result<()> {
    let head_dim = y.width / heads.count.max(1);
    x.expect("qk_rope", "x", n, x.width.max(heads.count * heads.stride.max(head_dim)))?;
    y.expect("qk_rope", "y", n, heads.count * head_dim)?;
    let n_rot = rotation.check("qk_rope", n, head_dim)?;
    let rows = n * heads.count;
    let params = Params {
        rows,
        heads: heads.count,
        head_dim,
        n_rot,
        x_token: x.width,
        x_head: heads.stride,
        eps: norm.map_or(0.0, |norm| norm.eps),
    };
    let variant = Variant::new("qk_rope")
        .flag("neox", rotation.kind == RopeKind::Neox)
        .flag("norm", norm.is_some())
        .flag("subgroup", norm.is_some() && rec.gpu().caps().subgroup)
        .number("WG", reduction_width(head_dim, rec.gpu().caps()));
    let mut bindings = vec![(&x.buf).into(), (&rotation.table.buf).into(), (&y.buf).into()];
    if let Some(norm) = norm {
        norm.gamma.expect("qk_rope", "gamma", 1, head_dim)?;
        bindings.push((&norm.gamma.buf).into());
    }
    rec.dispatch("qk_rope", &variant, &bindings, &params, Grid::Flat(u64::from(rows)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference::rope as reference,
        rope::RopeTable,
        testing::{assert_close, each_device, random},
    };

    #[test]
    fn heads_of_any_size_with_and_without_norm() {
        each_device(|t| {
            for (n, count, d, stride, n_rot) in
                [(1, 1, 8, 8, 8), (3, 4, 40, 80, 16), (5, 2, 256, 512, 64), (130, 3, 16, 16, 8)]
            {
                for kind in [RopeKind::Norm, RopeKind::Neox] {
                    let frequencies = reference::frequencies(n_rot, 1e4);
                    let rope = RopeTable::new(frequencies.clone(), 1.0);
                    let table = rope.tensor(&t.gpu, n as u32).unwrap();
                    let first = 1000;
                    rope.write(&t.gpu, first, n as u32, &table).unwrap();
                    let (x, g) = (random(5, n * count * stride), random(6, d));
                    let (x_t, gamma) = (t.upload(&x, count * stride), t.upload(&g, d));
                    let heads = Heads { count: count as u32, stride: stride as u32 };
                    let rotation = Rotation { table: &table, kind };
                    for normed in [false, true] {
                        let norm = normed.then_some(HeadNorm { gamma: &gamma, eps: 1e-6 });
                        let y = t.scratch(n, count * d);
                        t.run(|rec| record(rec, (&x_t, heads), norm, rotation, &y, n as u32));
                        let gamma = normed.then_some((g.as_slice(), 1e-6));
                        let want: Vec<f64> = (x.chunks(stride).enumerate())
                            .flat_map(|(i, head)| {
                                let position = first + (i / count) as u32;
                                let head = &head[..d];
                                reference::turn(head, gamma, &frequencies, kind, position)
                            })
                            .collect();
                        assert_close(&t.read(&y), &want, 1e-5);
                    }
                }
            }
        });
    }

    #[test]
    fn more_rotated_values_than_a_head_has_are_refused() {
        each_device(|t| {
            let table = t.scratch(2, 16);
            let rotation = Rotation { table: &table, kind: RopeKind::Neox };
            let (x, y) = (t.scratch(2, 8), t.scratch(2, 8));
            let heads = Heads { count: 1, stride: 8 };
            let mut rec = Recorder::new(&t.gpu);
            let e = record(&mut rec, (&x, heads), None, rotation, &y, 2).unwrap_err();
            assert!(e.to_string().contains("16 values of a head of 8"), "{e}");
        });
    }
}
