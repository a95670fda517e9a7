//! Times of a recording, several samples of it with their spread.

use engine::{
    Result,
    gpu::{Gpu, Recording},
    ops::Tensor,
};
use std::time::Instant;

const SAMPLES: usize = 7;

/// Seconds of one run: fastest, median and slowest. `out` is written by the recording.
pub(crate) fn seconds(gpu: &Gpu, recording: &Recording, out: &Tensor) -> Result<[f64; 3]> {
    run(gpu, recording, out, 1)?;
    // Enough runs a sample that submission does not count.
    let repeat = (0.05 / run(gpu, recording, out, 1)?).clamp(1.0, 200.0) as u32;
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        times.push(run(gpu, recording, out, repeat)? / f64::from(repeat));
    }
    times.sort_by(f64::total_cmp);
    Ok([times[0], times[SAMPLES / 2], times[SAMPLES - 1]])
}

/// Seconds of `repeat` runs.
fn run(gpu: &Gpu, recording: &Recording, out: &Tensor, repeat: u32) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..repeat {
        gpu.submit(recording)?;
    }
    gpu.read(&out.buf, 0, 4)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Median and range of times.
pub(crate) fn spread([fast, median, slow]: [f64; 3], factor: f64, unit: &str) -> String {
    format!("{:9.3} {unit} ({:.3} to {:.3})", median * factor, fast * factor, slow * factor)
}

/// Median and range of rates.
pub(crate) fn range([fast, median, slow]: [f64; 3]) -> String {
    format!("{median:.1} ({slow:.1} to {fast:.1})")
}
