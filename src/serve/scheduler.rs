//! The engine's thread: takes requests from the queue onto slots and lets the slots take turns.
//!
//! A turn is one step of one sequence. The slot whose request has had the least of the device's
//! time goes next, so a long prompt slows the others' answers by half, not by its length. Steps of
//! several sequences at once would change [`Scheduler::turn`] and nothing outside of this file.

use std::{sync::Arc, time::Duration};

use super::{
    queue::{Job, Queue},
    reuse::CheckpointOptions,
    slot::{Slot, Work},
    status::{SlotStatus, Status},
};
use crate::Engine;

/// The engine and its slots.
pub(super) struct Scheduler {
    engine: Engine,
    slots: Vec<Slot>,
    checkpoints: CheckpointOptions,
    queue: Arc<Queue>,
    status: Arc<Status>,
    /// Requests taken so far.
    taken: u64,
}

/// A beginning shorter than this share of a prompt is not worth what a slot would lose for it.
const WORTH: usize = 10;

impl Scheduler {
    pub(super) fn new(
        engine: Engine,
        slots: usize,
        checkpoints: CheckpointOptions,
        queue: Arc<Queue>,
        status: Arc<Status>,
    ) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(slots).collect();
        Self { engine, slots, checkpoints, queue, status, taken: 0 }
    }

    /// Serves requests for ever.
    pub(super) fn run(mut self) -> ! {
        loop {
            self.release();
            self.admit();
            match self.next() {
                Some(slot) => self.turn(slot),
                None => self.queue.wait(),
            }
        }
    }

    /// Frees the slots of clients that have gone.
    fn release(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].release() {
                self.show(index, Work::default());
            }
        }
    }

    /// Puts waiting requests on free slots.
    fn admit(&mut self) {
        while self.slots.iter().any(Slot::is_free)
            && let Some(job) = self.queue.pop()
            && let Some(index) = self.choose(&job)
        {
            self.taken += 1;
            // A newcomer is not to make up for the time before it came.
            let had = self.slots.iter().filter_map(Slot::had).min().unwrap_or(Duration::ZERO);
            let slot = &mut self.slots[index];
            slot.last = self.taken;
            let work = slot.start(&self.engine, job, had, &self.checkpoints);
            self.show(index, work);
        }
    }

    /// The free slot that holds the most of the prompt, or the one unused for the longest time.
    fn choose(&self, job: &Job) -> Option<usize> {
        let free = || (0..self.slots.len()).filter(|i| self.slots[*i].is_free());
        let reusable = |i: &usize| if job.reuse { self.slots[*i].reusable(&job.prompt) } else { 0 };
        let best = free().max_by_key(reusable)?;
        if reusable(&best) * WORTH >= job.prompt.len() {
            return Some(best);
        }
        free().min_by_key(|i| self.slots[*i].last)
    }

    /// The busy slot that has had the least time.
    fn next(&self) -> Option<usize> {
        let busy = self.slots.iter().enumerate().filter_map(|(i, slot)| Some((slot.had()?, i)));
        busy.min().map(|(_, i)| i)
    }

    fn turn(&mut self, index: usize) {
        let free = self.slots.iter().filter(|slot| slot.is_free()).count();
        let others = free + 1 < self.slots.len();
        let queue = &self.queue;
        let wanted = || others || (free > 0 && queue.len() > 0);
        let work = self.slots[index].turn(&mut self.engine, &self.checkpoints, &wanted);
        self.bound_checkpoints();
        self.show(index, work);
    }

    /// Forgets the least useful checkpoints that do not fit the memory for them.
    fn bound_checkpoints(&mut self) {
        while self.slots.iter().map(Slot::checkpoint_bytes).sum::<u64>() > self.checkpoints.memory {
            let least = self.slots.iter_mut().filter_map(|slot| {
                let last = slot.last;
                Some(((slot.points().least()?, last), slot))
            });
            let Some((_, slot)) = least.min_by_key(|(order, _)| *order) else { break };
            slot.points().drop_least();
        }
    }

    /// Publishes what has changed.
    fn show(&self, index: usize, work: Work) {
        let busy = self.slots.iter().filter(|slot| !slot.is_free()).count();
        let bytes = self.slots.iter().map(Slot::checkpoint_bytes).sum();
        let slot = &self.slots[index];
        // A failure of the device stays; one of a request passes.
        let fault = if work.failed { self.engine.gpu().finish().err() } else { None };
        self.status.update(|now| {
            now.slots[index] = SlotStatus {
                is_processing: !slot.is_free(),
                task: slot.last,
                held: slot.held().len(),
            };
            now.count(work, busy);
            now.checkpoint_bytes = bytes;
            now.memory = self.engine.memory();
            now.fault = fault.map(|error| error.to_string()).or(now.fault.take());
        });
    }
}
