//! Products of every weight format, by mat-vec and in tiles.

use super::KernelCheck;
use crate::{
    Result,
    gpu::Heap,
    ops::{
        bias, gated_product,
        gated_product::GateUp,
        product::{self, Epilogue},
        reference::{Deviation, Stored, multiply, random, silu},
    },
    quant::BlockType,
    selftest::lab::Lab,
};

const N_IN: usize = 1024;
/// Odd, and enough for the kernels of wide matrices.
const N_OUT: usize = 1031;
const LIMIT: f64 = 1e-5;

pub(super) fn checks() -> Vec<KernelCheck> {
    let types = BlockType::ALL.iter().copied().filter(|ty| ty.runs_on_gpu());
    let products = types.flat_map(|ty| {
        [("one row", 1), ("many rows", 35)].map(|(rows, n)| {
            KernelCheck::new(format!("product {ty}, {rows}"), move |lab| product(lab, ty, n))
        })
    });
    let gated = [("one row", 1), ("many rows", 11)].map(|(rows, n)| {
        KernelCheck::new(format!("gate and up, {rows}"), move |lab| gate_up(lab, n))
    });
    // The kernels of few rows, which all formats share but for what reads a weight.
    let few = KernelCheck::new("product Q4_K, few rows", |lab| product(lab, BlockType::Q4K, 5));
    products.chain([few]).chain(gated).chain([KernelCheck::new("bias", add_bias)]).collect()
}

fn product(lab: &Lab, ty: BlockType, n: usize) -> Result<Vec<Deviation>> {
    let (w, values) = lab.weights(ty, [N_OUT, N_IN])?;
    let x = random(2, n * N_IN);
    let (x_t, y) = (lab.upload(&x, N_IN)?, lab.scratch(n, N_OUT)?);
    lab.run(|rec| product::record(rec, "product", &w, &x_t, &y, n as u32, Epilogue::Store))?;
    let want = multiply(&values, &x, N_IN);
    Ok(vec![Deviation::of("y", lab.values(&y)?, want, lab.product_limit(n))])
}

/// One product of both where they are stored alike, else two.
fn gate_up(lab: &Lab, n: usize) -> Result<Vec<Deviation>> {
    const N_FF: usize = 131;
    let check = |gate: BlockType, up: BlockType| {
        let what = format!("h of {gate} and {up}");
        let [gate, up] =
            [(gate, 1), (up, 2)].map(|(ty, seed)| Stored::new(ty, seed, [1, N_FF, N_IN]));
        let gate_up = gate.with(|gate| {
            up.with(|up| {
                GateUp::upload(
                    &lab.gpu,
                    Heap::Device,
                    "ffn",
                    [N_IN as u32, N_FF as u32, 1],
                    gate,
                    up,
                )
            })
        })?;
        let x = random(3, n * N_IN);
        let (x_t, h) = (lab.upload(&x, N_IN)?, lab.scratch(n, N_FF)?);
        lab.run(|rec| gated_product::record(rec, "ffn", &gate_up, &x_t, &h, n as u32))?;
        let [gate, up] = [gate, up].map(|w| multiply(&w.values, &x, N_IN));
        let want = gate.iter().zip(up).map(|(gate, up)| silu(*gate) * up);
        Ok(Deviation::of(what, lab.values(&h)?, want, lab.product_limit(n)))
    };
    Ok(vec![check(BlockType::Q4K, BlockType::Q4K)?, check(BlockType::Q8_0, BlockType::Q4K)?])
}

fn add_bias(lab: &Lab) -> Result<Vec<Deviation>> {
    let (b, before) = (random(1, N_OUT), random(2, 3 * N_OUT));
    let (b_t, y) = (lab.upload(&b, N_OUT)?, lab.upload(&before, N_OUT)?);
    lab.run(|rec| bias::record(rec, &b_t, &y, 3))?;
    let want = before.iter().zip(b.iter().cycle()).map(|(y, b)| f64::from(*y) + f64::from(*b));
    Ok(vec![Deviation::of("y", lab.values(&y)?, want, LIMIT)])
}
