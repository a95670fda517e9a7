//! What benches share: times of a recording with their spread, and its rates beside the bound.

use engine::{
    Result,
    gpu::{DeviceOptions, Gpu, Heap, Recording, Restrictions},
};
use std::time::Instant;

const SAMPLES: usize = 7;
/// Seconds of a sample: so many runs that submission does not count.
const SAMPLE: f64 = 0.02;

/// A device, how fast it copies, and which lines are wanted of it.
pub(crate) struct Bench {
    pub(crate) gpu: Gpu,
    /// Bytes a second that a copy reads and writes: the bound of what memory bounds.
    copies: f64,
    /// Part of the names to measure.
    only: Option<String>,
}

/// What a run cannot do without.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Bytes read or written, each once; by default all that the dispatches bind.
    pub(crate) bytes: Option<f64>,
    /// Multiplications and additions, where these may be the bound.
    pub(crate) operations: f64,
}

impl Bench {
    /// Opens the device without what `restrict` takes from it and says what it is. The first argument
    /// that is no option chooses lines by a part of their names.
    pub(crate) fn open(restrict: Restrictions) -> Result<Self> {
        let gpu = Gpu::open(&DeviceOptions { restrict, ..DeviceOptions::default() })?;
        let copies = gpu.bandwidth(Heap::Device)?;
        let (name, driver) = (&gpu.adapter().name, &gpu.adapter().driver);
        println!("{name}, {driver}: copies {:.1} GB/s", copies / 1e9);
        let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
        Ok(Self { gpu, copies, only })
    }

    /// Whether the line of this name is to be printed.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// Prints what one of `times` equal runs in `recording` takes (median, fastest and slowest sample),
    /// its bytes a second, their share of those of a copy, and its operations a second.
    pub(crate) fn line(
        &self,
        name: &str,
        recording: &Recording,
        times: u32,
        work: Work,
    ) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let [fast, median, slow] = self.seconds(recording)?.map(|s| s / f64::from(times));
        let bound = || recording.bound().map(|(_, _, bytes)| bytes as f64).sum::<f64>();
        let rate = work.bytes.unwrap_or_else(|| bound() / f64::from(times)) / median;
        let (us, share) = ([median, fast, slow].map(|s| s * 1e6), 100.0 * rate / self.copies);
        print!("{name:44} {:10.1} us ({:.1} to {:.1})", us[0], us[1], us[2]);
        print!("  {:6.2} GB/s, {share:5.1} % of copies", rate / 1e9);
        match work.operations {
            0.0 => println!(),
            operations => println!("  {:7.1} GFLOP/s", operations / median / 1e9),
        }
        Ok(())
    }

    /// Seconds of a recording: fastest, median and slowest sample.
    fn seconds(&self, recording: &Recording) -> Result<[f64; 3]> {
        let run = |repeat: u32| -> Result<f64> {
            let start = Instant::now();
            (0..repeat).try_for_each(|_| self.gpu.submit(recording))?;
            self.gpu.finish()?;
            Ok(start.elapsed().as_secs_f64() / f64::from(repeat))
        };
        // Software compiles kernels in the first run.
        run(1)?;
        let repeat = (SAMPLE / run(1)?).clamp(1.0, 200.0) as u32;
        let mut times = (0..SAMPLES).map(|_| run(repeat)).collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok([times[0], times[SAMPLES / 2], times[SAMPLES - 1]])
    }
}
