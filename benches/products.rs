//! Speed of the products by weights of every type: bytes of weights for few rows of x, operations for
//! many.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench products -- "mat_vec Q4_K"
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.)

mod random;
mod timing;

use engine::{
    Result,
    gpu::{Heap, Recorder, Restrictions},
    ops::{Matrix, Source, Tensor, product, product::Epilogue, quantise},
    quant::BlockType,
};
use timing::{Bench, Work};

/// More than caches hold: products go through matrices of this many bytes in turn.
const WORKING_SET: u64 = 64 << 20;
/// Products a recording, each of another matrix while there are different ones.
const PRODUCTS: u32 = 8;

fn main() -> Result<()> {
    let open = |int_dot, matrices| {
        let (int_dot, matrices) = (Some(int_dot), Some(matrices));
        Bench::open(Restrictions { int_dot, matrices, ..Restrictions::default() })
    };
    let few = [1, 2, 4, 8];
    let floats = open(false, false)?;
    each(&floats, "mat_vec", &[[2048, 2048], [2048, 16_384]], &few)?;
    each(&floats, "tiled", &[[2048, 2048]], &[16, 128])?;
    // Few rows of x as whole numbers.
    each(&open(true, false)?, "mat_vec whole", &[[2048, 2048], [2048, 16_384]], &few)?;
    let matrices = open(false, true)?;
    match matrices.gpu.caps().matrices {
        Some(_) => each(&matrices, "tiled by matrices", &[[2048, 2048]], &[16, 128]),
        None => {
            println!("skipped: it has no cooperative matrices");
            Ok(())
        }
    }
}

/// The lines of every type with matrices of `shapes` (n_in, n_out) and so many rows of x.
fn each(bench: &Bench, kernel: &str, shapes: &[[u32; 2]], rows: &[u32]) -> Result<()> {
    for &ty in BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu()) {
        for &[n_in, n_out] in shapes {
            let name = |n: &u32| format!("{kernel} {ty} {n_out}x{n_in} n {n}");
            if !rows.iter().any(|n| bench.wants(&name(n))) {
                continue;
            }
            let matrices = matrices(bench, ty, [n_in, n_out])?;
            for n in rows {
                measure(bench, &name(n), &matrices, *n)?;
            }
        }
    }
    Ok(())
}

/// Different matrices of random weights.
fn matrices(bench: &Bench, ty: BlockType, [n_in, n_out]: [u32; 2]) -> Result<Vec<Matrix>> {
    let rows = random::weights(ty, u64::from(n_in) * u64::from(n_out));
    let source = Source { ty, rows: &|_| &rows, factors: None, used: &|_| () };
    let different = (WORKING_SET / rows.len() as u64).clamp(1, PRODUCTS.into());
    let upload = |_| Matrix::upload(&bench.gpu, Heap::Device, "w", [n_in, n_out, 1], source);
    (0..different).map(upload).collect()
}

fn measure(bench: &Bench, name: &str, matrices: &[Matrix], n: u32) -> Result<()> {
    let (gpu, [n_in, n_out]) = (&bench.gpu, [matrices[0].n_in, matrices[0].n_out]);
    let x = Tensor::factor(gpu, "x", n, n_in, n)?;
    gpu.upload(&x.buf, 0, bytemuck::cast_slice(&random::values(n * n_in)))?;
    let y = Tensor::scratch(gpu, "y", n, n_out)?;
    let mut rec = Recorder::new(gpu);
    quantise::record(&mut rec, &x, n)?;
    for w in matrices.iter().cycle().take(PRODUCTS as usize) {
        product::record(&mut rec, "bench", w, &x, &y, n, Epilogue::Store)?;
    }
    let operations = 2.0 * f64::from(n) * f64::from(n_in) * f64::from(n_out);
    let work = Work { bytes: Some(matrices[0].bytes() as f64), operations };
    bench.line(name, &rec.finish()?, PRODUCTS, work)
}
