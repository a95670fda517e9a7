//! Speed of the products by weights: bytes of weights a second for few rows of x, operations a
//! second for many.
//!
//! ```text
//! cargo bench --bench products
//! cargo bench --bench products -- mat_vec.*Q4_K
//! ```
//!
//! On software Vulkan with `LP_NUM_THREADS=2 LP_NATIVE_VECTOR_WIDTH=256` before it.

use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use engine::{
    Result,
    gpu::{DeviceOptions, Gpu, Heap, Readback, Recorder, Recording, Restrictions},
    ops::{Matrix, Source, Tensor, product, product::Epilogue, quantise},
    quant::BlockType,
};
use std::{fmt, sync::LazyLock};

/// One that multiplies f32, one that multiplies whole numbers where rows are few, and one with
/// cooperative matrices if there are any.
static DEVICE: LazyLock<Gpu> = LazyLock::new(|| open(false, false));
static WHOLE: LazyLock<Gpu> = LazyLock::new(|| open(true, false));
static MATRICES: LazyLock<Gpu> = LazyLock::new(|| open(false, true));

fn open(int_dot: bool, matrices: bool) -> Gpu {
    let restrict = Restrictions {
        int_dot: Some(int_dot),
        matrices: Some(matrices),
        ..Restrictions::default()
    };
    Gpu::open(&DeviceOptions { restrict, ..DeviceOptions::default() }).expect("a device")
}

/// More than caches hold: products go through matrices of this many bytes in turn.
const WORKING_SET: u64 = 64 << 20;

#[derive(Clone, Copy)]
struct Case {
    ty: BlockType,
    n_out: u32,
    n_in: u32,
    n: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{} n={}", self.ty, self.n_out, self.n_in, self.n)
    }
}

/// Products recorded once, and what it takes to wait for the last.
struct Step {
    gpu: &'static Gpu,
    recording: Recording,
    y: Tensor,
    readback: Readback,
}

/// Products a step, each of another matrix while there are different ones.
const PRODUCTS: u32 = 8;

impl Case {
    fn weight_bytes(&self) -> u64 {
        self.ty.row_bytes(self.n_in.into()).expect("whole blocks") * u64::from(self.n_out)
    }

    fn record(&self, gpu: &'static Gpu) -> Step {
        // Every field of every format is then a small number.
        let rows = vec![0x2b_u8; self.weight_bytes() as usize];
        let upload = |_| {
            let source = Source { ty: self.ty, rows: &|_| &rows, factors: None, used: &|_| () };
            Matrix::upload(gpu, Heap::Device, "w", [self.n_in, self.n_out, 1], source)
        };
        let different = (WORKING_SET / self.weight_bytes()).clamp(1, PRODUCTS.into());
        let matrices: Vec<_> = (0..different).map(upload).collect::<Result<_>>().expect("upload");
        let ones = vec![1.0_f32; self.n as usize * self.n_in as usize];
        let x = Tensor::factor(gpu, "x", self.n, self.n_in, self.n).expect("x");
        gpu.upload(&x.buf, 0, bytemuck::cast_slice(&ones)).expect("x");
        let y = Tensor::scratch(gpu, "y", self.n, self.n_out).expect("y");
        let mut rec = Recorder::new(gpu);
        quantise::record(&mut rec, &x, self.n).expect("quantise");
        for w in matrices.iter().cycle().take(PRODUCTS as usize) {
            product::record(&mut rec, "bench", w, &x, &y, self.n, Epilogue::Store).expect("record");
        }
        Step {
            gpu,
            recording: rec.finish().expect("finish"),
            y,
            readback: gpu.readback(4).expect("read-back"),
        }
    }
}

impl Step {
    fn run(&self) {
        self.gpu.submit(&self.recording).expect("submit");
        self.readback.read(self.gpu, &self.y.buf, 0, &mut [0; 4]).expect("read");
    }
}

/// Every type that runs, at each shape and number of rows.
fn cases(shapes: &[(u32, u32)], rows: &[u32]) -> Vec<Case> {
    let types = BlockType::ALL.iter().copied().filter(|ty| ty.runs_on_gpu());
    types
        .flat_map(|ty| shapes.iter().map(move |&(n_out, n_in)| (ty, n_out, n_in)))
        .flat_map(|(ty, n_out, n_in)| rows.iter().map(move |&n| Case { ty, n_out, n_in, n }))
        .collect()
}

#[divan::bench(args = cases(&[(2048, 2048), (16384, 2048)], &[1, 2, 4, 8]))]
fn mat_vec(bencher: Bencher<'_, '_>, case: Case) {
    stream(bencher, case, &DEVICE);
}

/// The same of whole numbers, where weights are made of bytes.
#[divan::bench(args = cases(&[(2048, 2048), (16384, 2048)], &[1, 2, 4, 8]))]
fn mat_vec_whole(bencher: Bencher<'_, '_>, case: Case) {
    stream(bencher, case, &WHOLE);
}

fn stream(bencher: Bencher<'_, '_>, case: Case, gpu: &'static Gpu) {
    let step = case.record(gpu);
    let bytes = case.weight_bytes() * u64::from(PRODUCTS);
    bencher.counter(BytesCount::new(bytes)).bench_local(|| step.run());
}

/// Items are multiplications and additions.
#[divan::bench(args = cases(&[(2048, 2048)], &[16, 128]), sample_count = 5)]
fn tiled(bencher: Bencher<'_, '_>, case: Case) {
    multiply(bencher, case, &DEVICE);
}

/// The same by cooperative matrices.
#[divan::bench(args = cases(&[(2048, 2048)], &[16, 128]), sample_count = 5)]
fn tiled_matrices(bencher: Bencher<'_, '_>, case: Case) {
    if MATRICES.caps().matrices.is_none() {
        println!("skipped: {} has no cooperative matrices", MATRICES.adapter().name);
        return bencher.bench_local(|| ());
    }
    multiply(bencher, case, &MATRICES);
}

fn multiply(bencher: Bencher<'_, '_>, case: Case, gpu: &'static Gpu) {
    let step = case.record(gpu);
    let operations = 2 * u64::from(case.n_out) * u64::from(case.n_in) * u64::from(case.n);
    let items = operations * u64::from(PRODUCTS);
    bencher.counter(ItemsCount::new(items)).bench_local(|| step.run());
}

fn main() {
    divan::main();
}
