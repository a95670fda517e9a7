//! What the engine's thread tells about itself: slots, counters, a failure of the device.

use std::{
    fmt::Write,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::slot::Work;
use crate::gpu::MemoryReport;

/// The state that is published, shared between threads.
#[derive(Debug)]
pub(super) struct Status(Mutex<Now>);

/// The state of the engine's thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Now {
    pub(super) slots: Vec<SlotStatus>,
    /// How often the device has failed.
    pub(super) failures: u64,
    pub(super) memory: MemoryReport,
    pub(super) checkpoint_bytes: u64,
    counters: Counters,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotStatus {
    pub(super) is_processing: bool,
    /// Number of the request that it has or had last.
    pub(super) task: u64,
    /// Tokens it holds.
    pub(super) held: usize,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    prompt_tokens: u64,
    prompt_time: Duration,
    chosen_tokens: u64,
    chosen_time: Duration,
    turns: u64,
    busy: u64,
    longest: usize,
}

impl Status {
    pub(super) fn new(slots: usize) -> Self {
        Self(Mutex::new(Now { slots: vec![SlotStatus::default(); slots], ..Now::default() }))
    }

    /// The state now.
    pub(super) fn now(&self) -> Now {
        self.lock().clone()
    }

    /// Changes the state.
    pub(super) fn update(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        // Numbers only: whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// The device has failed: nothing of the slots is left.
    pub(super) fn fail(&mut self) {
        self.failures += 1;
        self.slots.iter_mut().for_each(|slot| *slot = SlotStatus::default());
    }

    /// Counts a turn, of `busy` slots.
    pub(super) fn count(&mut self, work: Work, busy: usize) {
        let counters = &mut self.counters;
        counters.prompt_tokens += work.prompt as u64;
        counters.chosen_tokens += work.chosen as u64;
        match work {
            Work { prompt: 1.., .. } => counters.prompt_time += work.time,
            Work { chosen: 1.., .. } => {
                counters.chosen_time += work.time;
                counters.turns += 1;
                counters.busy += busy as u64;
            }
            _ => {}
        }
        let longest = self.slots.iter().map(|slot| slot.held).max().unwrap_or(0);
        counters.longest = counters.longest.max(longest);
    }

    /// The state in Prometheus' text format, under llama.cpp's names and, where it has none, ours.
    pub(super) fn metrics(&self, waiting: usize) -> String {
        let c = &self.counters;
        let rate = |tokens: u64, time: Duration| match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => tokens as f64 / seconds,
        };
        let busy = self.slots.iter().filter(|slot| slot.is_processing).count();
        let per_turn = if c.turns == 0 { 0.0 } else { c.busy as f64 / c.turns as f64 };
        let counter = "counter";
        let gauge = "gauge";
        let rows: [(&str, &str, &str, f64); 15] = [
            (
                "llamacpp:prompt_tokens_total",
                counter,
                "Prompt tokens processed.",
                c.prompt_tokens as f64,
            ),
            (
                "llamacpp:prompt_seconds_total",
                counter,
                "Time for prompts.",
                c.prompt_time.as_secs_f64(),
            ),
            (
                "llamacpp:prompt_tokens_seconds",
                gauge,
                "Prompt tokens a second.",
                rate(c.prompt_tokens, c.prompt_time),
            ),
            (
                "llamacpp:tokens_predicted_total",
                counter,
                "Tokens generated.",
                c.chosen_tokens as f64,
            ),
            (
                "llamacpp:tokens_predicted_seconds_total",
                counter,
                "Time for generation.",
                c.chosen_time.as_secs_f64(),
            ),
            (
                "llamacpp:predicted_tokens_seconds",
                gauge,
                "Generated tokens a second.",
                rate(c.chosen_tokens, c.chosen_time),
            ),
            ("llamacpp:requests_processing", gauge, "Requests on a slot.", busy as f64),
            ("llamacpp:requests_deferred", gauge, "Requests that wait for a slot.", waiting as f64),
            (
                "llamacpp:n_tokens_max",
                counter,
                "Most tokens a sequence has held.",
                c.longest as f64,
            ),
            ("llamacpp:n_decode_total", counter, "Steps of generation.", c.turns as f64),
            (
                "llamacpp:n_busy_slots_per_decode",
                gauge,
                "Busy slots in a step of generation.",
                per_turn,
            ),
            (
                "engine:device_failures_total",
                counter,
                "How often the device was opened again.",
                self.failures as f64,
            ),
            (
                "engine:checkpoint_bytes",
                gauge,
                "Memory of checkpoints.",
                self.checkpoint_bytes as f64,
            ),
            (
                "engine:device_memory_bytes",
                gauge,
                "Memory on the device.",
                self.memory.device.total as f64,
            ),
            (
                "engine:host_memory_bytes",
                gauge,
                "Host memory that the device reads in place.",
                self.memory.host.total as f64,
            ),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_numbers_from_the_start() {
        let status = Status::new(2);
        let text = status.now().metrics(0);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let work = Work { prompt: 3, time: Duration::from_secs(2), ..Work::default() };
        status.update(|now| now.count(work, 1));
        let text = status.now().metrics(5);
        assert!(text.contains("\nllamacpp:prompt_tokens_seconds 1.5\n"), "{text}");
        assert!(text.contains("\nllamacpp:requests_deferred 5\n"), "{text}");
        for line in text.lines() {
            assert!(
                line.starts_with('#') || line.split_once(' ').unwrap().1.parse::<f64>().is_ok()
            );
        }
    }
}
