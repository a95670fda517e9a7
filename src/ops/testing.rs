//! Devices and helpers for op tests.

pub(crate) use super::reference::{Stored, multiply, random, silu};
use super::{
    Matrix, Source, Tensor, quantise,
    reference::{
        Deviation,
        cached::{BLOCK, rounding},
    },
};
use crate::{
    Result,
    gpu::{Buf, DeviceOptions, Gpu, Heap, MemoryKind, Recorder, Restrictions},
    kv::KvType,
    quant::BlockType,
};
use std::sync::Mutex;

/// A device under test.
pub(crate) struct TestDevice {
    pub(crate) name: &'static str,
    pub(crate) gpu: Gpu,
}

/// Devices in a set.
const DEVICES: usize = 3;

/// Sets of devices that no test uses at the moment: tests run side by side, and a device compiles
/// and runs one thing at a time.
static IDLE: Mutex<Vec<Vec<TestDevice>>> = Mutex::new(Vec::new());

/// All are poisoned: new buffers hold NaN. The tiny workgroup limit makes every flat grid fold. All but
/// one multiply whole numbers where [`TestDevice::factor`] has made them, whatever the adapter has.
/// None has cooperative matrices ([`TestDevice::with_matrices`]) or is taken for software
/// ([`TestDevice::software`]).
fn open_set() -> Vec<TestDevice> {
    let open = |name, restrict, checked_shaders| {
        let restrict = Restrictions { matrices: Some(false), software: Some(false), ..restrict };
        let options =
            DeviceOptions { restrict, poison: true, checked_shaders, ..Default::default() };
        TestDevice { name, gpu: Gpu::open(&options).expect("a device for tests") }
    };
    vec![
        open("all features", Restrictions { int_dot: Some(true), ..Default::default() }, false),
        open("WebGPU defaults", Restrictions { webgpu_defaults: true, ..Default::default() }, true),
        open(
            "folded grids",
            Restrictions {
                no_subgroup: true,
                int_dot: Some(true),
                max_workgroups: Some(300),
                ..Default::default()
            },
            true,
        ),
    ]
}

/// Runs `test` on every test device; a failure names the device.
pub(crate) fn each_device(test: impl Fn(&TestDevice)) {
    let idle = IDLE.lock().expect("no test panics while it holds this").pop();
    let devices = idle.unwrap_or_else(open_set);
    for device in &devices {
        println!("on the device with {}", device.name);
        test(device);
    }
    IDLE.lock().expect("no test panics while it holds this").push(devices);
}

/// Runs `test` of each item on one of the test devices in turn: for what takes compiling many kernels
/// that differ in what they read, not in how they work.
pub(crate) fn in_turn<T>(items: impl IntoIterator<Item = T>, test: impl Fn(&TestDevice, T)) {
    let items = std::cell::RefCell::new(items.into_iter().map(Some).collect::<Vec<_>>());
    let turn = std::cell::Cell::new(0);
    each_device(|t| {
        let first = turn.replace(turn.get() + 1);
        for item in items.borrow_mut().iter_mut().skip(first).step_by(DEVICES) {
            test(t, item.take().expect("each item has one turn"));
        }
    });
}

/// Runs `test` of every type of weights on two test devices: where x is to be whole numbers (`true`) and
/// where it is not, in turn with sums by subgroups.
pub(crate) fn each_form(test: impl Fn(&TestDevice, BlockType, bool)) {
    each_device(|t| {
        let caps = t.gpu.caps();
        let types = BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu());
        for (i, &ty) in types.enumerate() {
            let first = i % 2 == 0;
            let whole = if caps.subgroup { first } else { caps.int_dot };
            if caps.subgroup || whole != first {
                test(t, ty, whole);
            }
        }
    });
}

/// Says what is skipped and why, past the test harness, which keeps what passing tests print.
pub(crate) fn skipped(what: impl std::fmt::Display) {
    use std::io::Write;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

impl TestDevice {
    /// One that uses cooperative matrices, or none with a message where there are not any.
    pub(crate) fn with_matrices() -> Option<Self> {
        let restrict = Restrictions { matrices: Some(true), ..Default::default() };
        let options = DeviceOptions { restrict, poison: true, ..Default::default() };
        let gpu = Gpu::open(&options).expect("a device for tests");
        if gpu.caps().matrices.is_none() {
            skipped(format_args!("{} has no cooperative matrices", gpu.adapter().name));
            return None;
        }
        Some(Self { name: "cooperative matrices", gpu })
    }

    /// One that uses the kernels for software.
    pub(crate) fn software() -> Self {
        let restrict = Restrictions { software: Some(true), ..Default::default() };
        let options = DeviceOptions { restrict, poison: true, ..Default::default() };
        Self { name: "kernels for software", gpu: Gpu::open(&options).expect("a device for tests") }
    }

    /// A device whose bindings hold at most `bytes`.
    pub(crate) fn with_binding(bytes: u64) -> Self {
        let restrict = Restrictions {
            max_binding: Some(bytes),
            matrices: Some(false),
            int_dot: Some(true),
            software: Some(false),
            ..Default::default()
        };
        let options = DeviceOptions { restrict, poison: true, ..Default::default() };
        let gpu = Gpu::open(&options).expect("a device for tests");
        Self { name: "small bindings", gpu }
    }

    /// A stack of matrices (experts, rows, width) of random weights, and their values.
    pub(crate) fn weights(&self, ty: BlockType, shape: [usize; 3]) -> (Matrix, Vec<f32>) {
        let stored = Stored::new(ty, 1, shape);
        let [n_expert, n_out, n_in] = shape.map(|n| n as u32);
        let upload = |s: Source<'_>| {
            Matrix::upload(&self.gpu, Heap::Device, "test weights", [n_in, n_out, n_expert], s)
        };
        let matrix = stored.with(upload).unwrap_or_else(|e| panic!("{e}"));
        (matrix, stored.values)
    }

    pub(crate) fn upload(&self, values: &[f32], width: usize) -> Tensor {
        let rows = (values.len() / width) as u32;
        let tensor = Tensor::factor(&self.gpu, "test input", rows, width as u32, 0).expect("alloc");
        self.gpu.upload(&tensor.buf, 0, bytemuck::cast_slice(values)).expect("upload");
        tensor
    }

    /// The same, for what a matrix is multiplied with: as whole numbers, too, where the device
    /// multiplies them.
    pub(crate) fn factor(&self, values: &[f32], width: usize) -> Tensor {
        let x = self.factor_scratch(values.len() / width, width);
        self.gpu.upload(&x.buf, 0, bytemuck::cast_slice(values)).expect("upload");
        self.run(|rec| quantise::record(rec, &x, x.rows));
        x
    }

    pub(crate) fn factor_scratch(&self, rows: usize, width: usize) -> Tensor {
        let (rows, width) = (rows as u32, width as u32);
        Tensor::factor(&self.gpu, "test factor", rows, width, rows).expect("scratch")
    }

    /// The whole numbers of x, where it has them, are its values.
    pub(crate) fn assert_whole(&self, x: &Tensor) {
        let Some(whole) = &x.whole else { return };
        let values = self.read(x);
        let words = self.read_words(whole, values.len() / 32 * 20);
        for (words, values) in words.chunks(20).zip(values.chunks(32)) {
            let largest = values.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
            let [unit, first, last, _] = [16, 17, 18, 19].map(|i| f32::from_bits(words[i]));
            let byte = |at: usize, i: usize| words[at + i / 4].to_le_bytes()[i % 4] as i8;
            let number = |i| unit * (254.0 * f32::from(byte(0, i)) + f32::from(byte(8, i)));
            for (i, value) in values.iter().enumerate() {
                let error = (number(i) - value).abs();
                assert!(error <= 1.6e-5 * largest, "{} instead of {value}, unit {unit}", number(i));
            }
            for (sum, range) in [(first, 0..16), (last, 16..32)] {
                let want: f32 = range.map(number).sum();
                assert!((sum - want).abs() <= 1e-5 * largest, "{sum} instead of {want}");
            }
        }
    }

    pub(crate) fn upload_words(&self, words: &[u32]) -> Buf {
        let bytes = words.len() as u64 * 4;
        let buf = self.gpu.alloc("test input", bytes, MemoryKind::Scratch).expect("alloc");
        self.gpu.upload(&buf, 0, bytemuck::cast_slice(words)).expect("upload");
        buf
    }

    pub(crate) fn read_words(&self, buf: &Buf, n: usize) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&self.gpu.read(buf, 0, n as u64 * 4).expect("read"))
    }

    pub(crate) fn scratch(&self, rows: usize, width: usize) -> Tensor {
        Tensor::scratch(&self.gpu, "test output", rows as u32, width as u32).expect("scratch")
    }

    /// Records what `record` adds, submits it once.
    pub(crate) fn run(&self, record: impl FnOnce(&mut Recorder) -> Result<()>) {
        let mut rec = Recorder::new(&self.gpu);
        record(&mut rec).unwrap_or_else(|e| panic!("{e}"));
        let recording = rec.finish().expect("finish");
        self.gpu.submit(&recording).expect("submit");
    }

    pub(crate) fn read(&self, tensor: &Tensor) -> Vec<f32> {
        tensor.read(&self.gpu, tensor.rows).expect("read")
    }
}

/// Every value within `tolerance`, relative to the larger of 1 and the largest reference value.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    let deviation = Deviation::of("value", got.iter().copied(), want.iter().copied(), tolerance);
    assert!(deviation.ok(), "{deviation}");
}

/// Every value as near as a cache of type `ty` keeps it to what was to be stored. A NaN stays one,
/// and in types in blocks makes one of its whole block.
#[track_caller]
pub(crate) fn assert_stored(ty: KvType, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let blocks = ty.parts(64)[1] > 0;
    // The largest number of the type, or of the type of its scales, and the least step.
    let (limit, least) = match ty {
        KvType::F32 | KvType::Bf16 => (f64::INFINITY, 0.0),
        KvType::F16 => (65504.0, 6e-8),
        KvType::Q8_0 => (65504.0 * 127.0, 6e-8 * 127.0),
        KvType::Q4_0 => (65504.0 * 8.0, 6e-8 * 8.0),
    };
    for (b, (got, want)) in got.chunks(BLOCK).zip(want.chunks(BLOCK)).enumerate() {
        let largest = want.iter().fold(0.0, |m: f64, w| m.max(w.abs())).min(limit);
        let spoilt = blocks && want.iter().any(|w| w.is_nan());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let n = b * BLOCK + i;
            if spoilt || want.is_nan() {
                assert!(got.is_nan(), "{ty}, value {n}: {got}, not NaN");
                continue;
            }
            let (got, want) = (f64::from(*got), want.clamp(-limit, limit));
            let scale = if blocks || ty == KvType::F32 { largest } else { want.abs() };
            let error = rounding(ty) * scale + 1e-6 * largest + least;
            let good = got == want || (got - want).abs() <= error;
            assert!(good, "{ty}, value {n}: {got} instead of {want}, {largest} at most");
        }
    }
}
