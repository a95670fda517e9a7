//! How much to submit at once: drivers kill a submission that runs for seconds (2 s on new Linux
//! kernels and on Windows), and nothing else gets the GPU while it lasts.

use super::{Gpu, Recording};
use crate::Result;
use std::time::{Duration, Instant};

/// A submission should not take longer than this.
const LIMIT: Duration = Duration::from_millis(200);
/// Dispatches of the first submission, before anything is known about the device.
const FIRST: usize = 16;
/// More at once gain nothing.
const MOST: usize = 4096;

/// Dispatches to submit at once, as measured on this device with this model.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    dispatches: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { dispatches: FIRST }
    }
}

impl Pace {
    /// Learns that as many dispatches as it allows took `time`.
    fn learn(&mut self, time: Duration) {
        if time > LIMIT {
            let share = LIMIT.as_secs_f64() / time.as_secs_f64();
            self.dispatches = ((self.dispatches as f64 * share) as usize).max(1);
        } else if time < LIMIT / 4 {
            self.dispatches = (self.dispatches * 2).min(MOST);
        }
    }
}

impl Gpu {
    /// Submits a long recording in parts of bounded time, waiting for each.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn submit_paced(&self, recording: &Recording, pace: &mut Pace) -> Result<()> {
        let mut rest = recording.commands.as_slice();
        while !rest.is_empty() {
            let whole = rest.len() > pace.dispatches;
            let (part, after) = rest.split_at(pace.dispatches.min(rest.len()));
            let start = Instant::now();
            self.submit_part(recording, part)?;
            self.finish()?;
            // A shorter last part says little, unless it was too long already.
            if whole || start.elapsed() > LIMIT {
                pace.learn(start.elapsed());
            }
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_devices_get_less_and_fast_ones_more() {
        let mut pace = Pace::default();
        pace.learn(Duration::from_secs(1));
        assert_eq!(pace.dispatches, FIRST / 5);
        pace.learn(Duration::from_secs(100));
        assert_eq!(pace.dispatches, 1);
        for _ in 0..20 {
            pace.learn(Duration::from_millis(1));
        }
        assert_eq!(pace.dispatches, MOST);
        pace.learn(LIMIT / 2);
        assert_eq!(pace.dispatches, MOST);
    }
}
