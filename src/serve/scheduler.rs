//! The engine's thread: takes requests from the queue onto slots and lets the slots take turns.
//!
//! A turn is a step of one prompt, or one token of all requests that are past theirs. After a step
//! of a prompt the others get as much of the device's time, so a long prompt slows answers by half,
//! not by its length, and goes on whatever else runs: a stream never waits for more than one such
//! step between two tokens. Among prompts, and among more streams than step together, those go next
//! that have had the least time.

use std::{sync::Arc, time::Duration};

use super::{
    queue::{Job, Queue},
    slot::{Needs, Slot, Work},
    status::{SlotStatus, Status},
    store::{Store, automatic},
    together,
};
use crate::{
    Engine, Error,
    history::{CheckpointOptions, Points},
};

/// The engine and its slots.
pub(super) struct Scheduler {
    pub(super) engine: Engine,
    pub(super) slots: Vec<Slot>,
    /// Where what slots hold is kept, and after what time without requests.
    pub(super) store: Option<Store>,
    pub(super) idle: Option<Duration>,
    checkpoints: CheckpointOptions,
    pub(super) queue: Arc<Queue>,
    status: Arc<Status>,
    /// Requests taken so far.
    taken: u64,
    /// Time that streams get before the next step of a prompt.
    owed: Duration,
    /// The device has failed.
    fault: Option<Error>,
}

/// What to do next.
enum Turn {
    /// A portion of the prompt of this slot.
    Prompt(usize),
    /// A token of each stream.
    Tokens,
}

/// A beginning shorter than this share of a prompt is not worth what a slot would lose for it.
const WORTH: usize = 10;

impl Scheduler {
    pub(super) fn new(
        engine: Engine,
        slots: usize,
        store: Option<(Store, Duration)>,
        checkpoints: CheckpointOptions,
        queue: Arc<Queue>,
        status: Arc<Status>,
    ) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(slots).collect();
        let (store, idle) = store.unzip();
        let owed = Duration::ZERO;
        Self { engine, slots, store, idle, checkpoints, queue, status, taken: 0, owed, fault: None }
    }

    /// Serves requests until the device has failed, and returns how, or until the queue is closed.
    pub(super) fn run(mut self) -> Option<Error> {
        loop {
            self.release();
            self.obey();
            self.admit();
            if let Some(fault) = self.fault.take() {
                self.slots.iter_mut().for_each(|slot| slot.fail(&fault));
                return Some(fault);
            }
            if self.queue.is_closed() {
                self.keep_all();
                return None;
            }
            match self.next() {
                Some(Turn::Prompt(slot)) => self.prompt(slot),
                Some(Turn::Tokens) => self.tokens(),
                None => self.rest(),
            }
        }
    }

    /// Frees the slots of clients that have gone.
    fn release(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].release() {
                self.show(Work::default(), 0);
            }
        }
    }

    /// Puts waiting requests on free slots.
    fn admit(&mut self) {
        while self.slots.iter().any(Slot::is_free)
            && let Some(job) = self.queue.pop(|slot| self.slots[slot].is_free())
            && let Some(index) = self.choose(&job)
        {
            self.taken += 1;
            // A newcomer is not to make up for the time before it came.
            let had = self.slots.iter().filter_map(Slot::had).min().unwrap_or(Duration::ZERO);
            self.fetch(index, &job);
            let slot = &mut self.slots[index];
            slot.last = self.taken;
            let work = slot.start(&self.engine, job, had, &self.checkpoints);
            self.show(work, 0);
        }
    }

    /// The slot that is asked for, the one that holds the conversation, the free slot that holds the most of the prompt, or the one
    /// unused for the longest time.
    fn choose(&self, job: &Job) -> Option<usize> {
        if job.slot.is_some() {
            return job.slot;
        }
        let free = || (0..self.slots.len()).filter(|i| self.slots[*i].is_free());
        let session = job.session.as_deref().map(automatic);
        let own = |i: &usize| session.is_some() && self.slots[*i].session() == session.as_deref();
        if let Some(own) = free().find(own) {
            return Some(own);
        }
        let reusable = |i: &usize| if job.reuse { self.slots[*i].reusable(&job.prompt) } else { 0 };
        let best = free().max_by_key(reusable)?;
        if reusable(&best) * WORTH >= job.prompt.len() {
            return Some(best);
        }
        free().min_by_key(|i| self.slots[*i].last)
    }

    fn next(&self) -> Option<Turn> {
        let needs = |what| move |slot: &&Slot| slot.needs() == Some(what);
        let streams = self.slots.iter().any(|slot| needs(Needs::Token)(&slot));
        let prompts = self.slots.iter().enumerate().filter(|(_, slot)| needs(Needs::Prompt)(slot));
        match prompts.min_by_key(|(_, slot)| slot.had()) {
            Some((slot, _)) if self.owed.is_zero() || !streams => Some(Turn::Prompt(slot)),
            _ => streams.then_some(Turn::Tokens),
        }
    }

    fn prompt(&mut self, index: usize) {
        let free = self.slots.iter().filter(|slot| slot.is_free()).count();
        let others = free + 1 < self.slots.len();
        let (queue, busy) = (&self.queue, self.busy());
        let orders = || queue.has_order(|action| !busy.concerns(action));
        let jobs = || free > 0 && queue.len() > 0;
        let wanted = || others || queue.is_closed() || jobs() || orders();
        let work = self.slots[index].prefill(&mut self.engine, &self.checkpoints, &wanted);
        self.owed = work.time;
        self.bound_checkpoints();
        self.show(work, 1);
    }

    fn tokens(&mut self) {
        let needs = |slot: &&mut Slot| slot.needs() == Some(Needs::Token);
        let mut streams: Vec<_> = self.slots.iter_mut().filter(needs).collect();
        streams.sort_by_key(|slot| slot.had());
        streams.truncate(self.engine.together());
        let count = streams.len();
        let work = together::step(&mut self.engine, streams);
        self.owed = self.owed.saturating_sub(work.time);
        self.show(work, count);
    }

    /// Forgets the least useful checkpoints that do not fit the memory for them.
    pub(super) fn bound_checkpoints(&mut self) {
        while self.slots.iter().map(Slot::checkpoint_bytes).sum::<u64>() > self.checkpoints.memory {
            let least = self.slots.iter_mut().filter_map(|slot| {
                let last = slot.last;
                Some(((slot.points()?.least()?, last), slot))
            });
            let Some((_, slot)) = least.min_by_key(|(order, _)| *order) else { break };
            slot.points().into_iter().for_each(Points::drop_least);
        }
    }

    /// Publishes what has changed by a turn of `together` slots.
    pub(super) fn show(&mut self, work: Work, together: usize) {
        let bytes = self.slots.iter().map(Slot::checkpoint_bytes).sum();
        let shown = self.slots.iter().map(|slot| SlotStatus {
            is_processing: !slot.is_free(),
            task: slot.last,
            held: slot.held().len(),
        });
        // A failure of the device stays; one of a request passes.
        if work.failed {
            self.fault = self.engine.gpu().finish().err();
        }
        self.status.update(|now| {
            now.slots = shown.collect();
            now.count(work, together);
            now.checkpoint_bytes = bytes;
            now.memory = self.engine.memory();
        });
    }
}
