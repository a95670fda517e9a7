//! Devices and helpers for op tests.

use super::Tensor;
use crate::{
    Result,
    gpu::{DeviceOptions, Gpu, MemoryKind, Recorder, Restrictions},
};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::LazyLock;

/// A device under test.
pub(crate) struct TestDevice {
    pub(crate) name: &'static str,
    pub(crate) gpu: Gpu,
}

/// All are poisoned: new buffers hold NaN. The tiny workgroup limit makes every flat grid fold.
static DEVICES: LazyLock<Vec<TestDevice>> = LazyLock::new(|| {
    let open = |name, restrict, checked_shaders| {
        let options = DeviceOptions { restrict, poison: true, checked_shaders, select: None };
        TestDevice { name, gpu: Gpu::open(&options).expect("a device for tests") }
    };
    vec![
        open("all features", Restrictions::default(), false),
        open("WebGPU defaults", Restrictions { webgpu_defaults: true, ..Default::default() }, true),
        open(
            "folded grids",
            Restrictions { no_subgroup: true, max_workgroups: Some(300), ..Default::default() },
            true,
        ),
    ]
});

/// Runs `test` on every test device; a failure names the device.
pub(crate) fn each_device(test: impl Fn(&TestDevice)) {
    for device in DEVICES.iter() {
        println!("on the device with {}", device.name);
        test(device);
    }
}

impl TestDevice {
    pub(crate) fn upload(&self, values: &[f32], width: usize) -> Tensor {
        Tensor::upload(&self.gpu, "test input", values, width as u32, MemoryKind::Scratch)
            .expect("upload")
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

/// `n` values in -1 .. 1, the same for the same seed.
pub(crate) fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// `n` random bytes.
pub(crate) fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Every value within `tolerance`, relative to the larger of 1 and the largest reference value.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1.0, |m: f64, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        assert!(error <= tolerance * scale, "value {i}: {g} instead of {w}");
    }
}
