//! What crosses between the HTTP threads and the engine's: requests as token ids and settings,
//! answers as ids and text.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::mpsc::UnboundedSender;

use crate::{
    Error,
    generate::{FinishReason, GenerateOptions},
    sample::SamplingParams,
    text::Constraint,
};

/// One choice of one request: a prompt to continue.
#[derive(Debug)]
pub(super) struct Job {
    /// Which choice of its request.
    pub(super) choice: usize,
    /// Not empty and within the context.
    pub(super) prompt: Vec<u32>,
    pub(super) sampling: SamplingParams,
    pub(super) options: GenerateOptions,
    /// Holds the answer to a grammar.
    pub(super) constraint: Option<Constraint>,
    /// How many likely tokens to tell beside each one that is chosen.
    pub(super) logprobs: Option<usize>,
    /// What earlier requests have left may be used.
    pub(super) reuse: bool,
    /// The one slot that may take it.
    pub(super) slot: Option<usize>,
    /// Where events go, with the choice; closed when the client has gone.
    pub(super) events: UnboundedSender<(usize, Event)>,
}

/// What happens to a [`Job`]; the last is `Done` or `Failed`.
#[derive(Debug)]
pub(super) enum Event {
    /// The prompt is processed up to here.
    Prompt(Progress),
    /// A token was chosen.
    Token(Chosen),
    Done(Summary),
    Failed(Error),
}

/// How far a prompt is processed, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) total: usize,
    /// Of them, those that an earlier request had left.
    pub(super) cached: usize,
    /// Cached ones among them.
    pub(super) processed: usize,
    pub(super) time: Duration,
}

/// A token that was chosen.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) id: u32,
    /// What can be shown now.
    pub(super) text: String,
    pub(super) logprobs: Option<Logprobs>,
}

/// Natural logarithms of probabilities, by the unmodified softmax.
#[derive(Debug)]
pub(super) struct Logprobs {
    pub(super) chosen: f32,
    /// The most likely tokens, in falling order.
    pub(super) top: Vec<(u32, f32)>,
}

/// What came of a job.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub(super) finish: FinishReason,
    /// The stop string that ended it.
    pub(super) stopped_by: Option<String>,
    pub(super) prompt: usize,
    pub(super) cached: usize,
    pub(super) generated: usize,
    /// Until the first token was chosen.
    pub(super) prompt_time: Duration,
    /// For the tokens after it.
    pub(super) decode_time: Duration,
}

/// Jobs that wait for a slot.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    capacity: usize,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), capacity }
    }

    /// Adds all of `jobs`, or none if they do not fit.
    pub(super) fn push(&self, jobs: Vec<Job>) -> Result<(), Full> {
        let mut waiting = self.lock();
        waiting.retain(|job| !job.events.is_closed());
        if waiting.len() + jobs.len() > self.capacity {
            return Err(Full);
        }
        waiting.extend(jobs);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next job whose client is still there and whose slot, if it wants a certain one, is free.
    pub(super) fn pop(&self, is_free: impl Fn(usize) -> bool) -> Option<Job> {
        let mut waiting = self.lock();
        waiting.retain(|job| !job.events.is_closed());
        let next = waiting.iter().position(|job| job.slot.is_none_or(&is_free))?;
        waiting.remove(next)
    }

    /// Sleeps until there is a job.
    pub(super) fn wait(&self) {
        let waiting = self.lock();
        drop(self.arrived.wait_while(waiting, |waiting| waiting.is_empty()));
    }

    /// Ends all jobs that wait.
    pub(super) fn fail(&self, fault: &Error) {
        for job in self.lock().drain(..) {
            let error = Error::Device(fault.to_string());
            let _ = job.events.send((job.choice, Event::Failed(error)));
        }
    }

    /// Jobs that wait and whose clients do.
    pub(super) fn len(&self) -> usize {
        self.lock().iter().filter(|job| !job.events.is_closed()).count()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Job>> {
        // The list is whole at every moment.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No more jobs can wait.
#[derive(Debug)]
pub(super) struct Full;
