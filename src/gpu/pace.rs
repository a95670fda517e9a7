//! How much to submit at once: drivers kill a submission that runs for seconds (2 s on new Linux
//! kernels and on Windows), and nothing else gets the GPU while it lasts.
//!
//! A kernel whose cost is not known runs alone. Then what it takes a workgroup is, and dispatches
//! go together as long as their sum stays within half of the limit: the device may become twice as
//! slow in the middle.

use super::{Gpu, Recording, record::Command};
use crate::Result;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// A submission should not take longer than this.
const LIMIT: Duration = Duration::from_millis(200);
/// What the dispatches of one are expected to take together.
const AIM: f64 = LIMIT.as_secs_f64() / 2.0;
/// Fewer workgroups do not fill a device: their number does not say what they take.
const FILLS: u64 = 128;
/// No dispatch takes less, in seconds.
const LEAST: f64 = 1e-6;
/// So many times slower or faster than expected is more than chance.
const MUCH: f64 = 1.5;

/// What a dispatch asks of the device.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// The kernel's number.
    kernel: usize,
    workgroups: u64,
    /// What each of them goes through: tokens of history, or 1.
    units: u64,
}

impl Load {
    fn size(self) -> f64 {
        self.workgroups.max(FILLS) as f64 * self.units as f64
    }
}

/// What the kernels of a model take on a device, as measured.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Seconds a workgroup and unit, by the kernel's number; none: not measured.
    costs: Vec<Option<f64>>,
    /// The shortest submission so far.
    asking: Option<Duration>,
}

impl Pace {
    /// Seconds that `load` will take, if its kernel has been measured.
    fn expected(&self, load: Load) -> Option<f64> {
        let cost = self.costs.get(load.kernel).copied().flatten()?;
        Some(cost * load.size())
    }

    /// Whether a recording is known to be done within the limit, so that it needs no parts and no wait.
    pub fn is_short(&self, recording: &Recording) -> bool {
        self.fit(recording.commands.iter().map(load))
    }

    /// Whether `loads` have all been measured and will together take no more than a submission should.
    fn fit(&self, mut loads: impl Iterator<Item = Option<Load>>) -> bool {
        let add = |sum, load: Option<Load>| {
            Some(sum + load.map_or(Some(0.0), |load| self.expected(load))?)
        };
        loads.try_fold(0.0, add).is_some_and(|sum| sum <= LIMIT.as_secs_f64())
    }

    /// How many of the first `loads` to submit at once, at least one.
    fn portion(&self, loads: impl Iterator<Item = Option<Load>>) -> usize {
        let (mut sum, mut count) = (0.0, 0);
        for load in loads {
            let expected = load.map_or(Some(0.0), |load| self.expected(load));
            sum += expected.unwrap_or(f64::INFINITY);
            if sum > AIM && count > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    /// Learns that `loads` took `time` together.
    fn learn(&mut self, loads: impl Iterator<Item = Load>, time: Duration) {
        // Of every time, asking the device takes a part: at most what the shortest one took.
        let asking = *self.asking.insert(self.asking.map_or(time, |least| least.min(time)));
        let time = (time - asking).as_secs_f64().max(LEAST);
        // Seconds that each kernel was expected to take.
        let (mut shares, mut count, mut size) = (HashMap::new(), 0, 0.0);
        for load in loads {
            *shares.entry(load.kernel).or_insert(0.0) += self.expected(load).unwrap_or(0.0);
            (count, size) = (count + 1, load.size());
        }
        let expected: f64 = shares.values().sum();
        let Some((&most, _)) = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)) else { return };
        if count == 1 {
            self.costs.resize(self.costs.len().max(most + 1), None);
            self.costs[most] = Some(time / size);
        } else if time > MUCH * expected && time > AIM {
            // So much slower is the device, probably, with other kernels, too.
            self.costs.iter_mut().flatten().for_each(|cost| *cost *= time / expected);
        } else if time > expected {
            for kernel in shares.into_keys() {
                self.costs[kernel] = self.costs[kernel].map(|cost| cost * time / expected);
            }
        } else if time * MUCH < expected {
            // Whose share was too large is not known: the largest is measured again.
            self.costs[most] = None;
        }
    }
}

/// Runs `commands` in portions of bounded time; `run` tells how long one took.
fn in_portions<C>(
    commands: &[C],
    pace: &mut Pace,
    load: impl Fn(&C) -> Option<Load>,
    mut run: impl FnMut(&[C]) -> Result<Duration>,
) -> Result<()> {
    let mut rest = commands;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(pace.portion(rest.iter().map(&load)));
        let time = run(part)?;
        pace.learn(part.iter().filter_map(&load), time);
        rest = after;
    }
    Ok(())
}

/// What `command` asks of the device; a copy takes little: rows of activations, at most.
fn load(command: &Command) -> Option<Load> {
    match command {
        Command::Dispatch(d) => {
            let workgroups = d.grid.iter().map(|n| u64::from(*n)).product();
            Some(Load { kernel: d.kernel.number, workgroups, units: d.units.into() })
        }
        Command::Copy { .. } => None,
    }
}

impl Gpu {
    /// Submits a long recording in parts of bounded time, waiting for each.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn submit_paced(&self, recording: &Recording, pace: &mut Pace) -> Result<()> {
        in_portions(&recording.commands, pace, load, |part| {
            let start = Instant::now();
            self.submit_part(part)?;
            self.finish()?;
            Ok(start.elapsed())
        })
    }
}

#[cfg(test)]
mod tests;
