//! What crosses between the HTTP threads and the engine's: requests as token ids and settings,
//! answers as ids and text, orders about what slots hold.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::{
    Error, Result,
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
    /// Name of the conversation that it belongs to.
    pub(super) session: Option<String>,
    /// Where events go, with the choice; closed when the client has gone.
    pub(super) events: UnboundedSender<(usize, Event)>,
}

#[cfg(test)]
impl Job {
    /// The greedy continuation of `prompt`.
    pub(super) fn of(prompt: Vec<u32>, events: UnboundedSender<(usize, Event)>) -> Self {
        Self {
            choice: 0,
            prompt,
            sampling: SamplingParams { temperature: 0.0, ..Default::default() },
            options: GenerateOptions { ignore_eos: true, ..Default::default() },
            constraint: None,
            logprobs: None,
            reuse: false,
            slot: None,
            session: None,
            events,
        }
    }
}

/// Something to do about sessions, between requests.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) what: Action,
    pub(super) done: oneshot::Sender<Result<Moved>>,
}

impl Order {
    /// Whether somebody waits for it. What was to be forgotten is, whoever has gone.
    fn is_wanted(&self) -> bool {
        !self.done.is_closed() || matches!(self.what, Action::Forget(_))
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Save what the slot holds as the file of this name.
    Save(usize, String),
    /// Load it onto the slot.
    Restore(usize, String),
    /// Empty the slot.
    Erase(usize),
    /// Forget the conversation of this name, on the disk and in slots.
    Forget(String),
}

/// What was saved, restored or erased.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) tokens: usize,
    /// Bytes of the file.
    pub(super) bytes: u64,
    pub(super) time: Duration,
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

/// Jobs and orders that wait for a slot.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    orders: VecDeque<Order>,
    /// The server is to end.
    closed: bool,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), capacity }
    }

    /// Most jobs that can wait.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds all of `jobs`, or none if they do not fit.
    pub(super) fn push(&self, jobs: Vec<Job>) -> std::result::Result<(), Full> {
        let mut waiting = self.lock();
        waiting.jobs.retain(|job| !job.events.is_closed());
        if waiting.jobs.len() + jobs.len() > self.capacity {
            return Err(Full);
        }
        waiting.jobs.extend(jobs);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next job whose client is still there and whose slot, if it wants a certain one, is free.
    pub(super) fn pop(&self, is_free: impl Fn(usize) -> bool) -> Option<Job> {
        let mut waiting = self.lock();
        waiting.jobs.retain(|job| !job.events.is_closed());
        let next = waiting.jobs.iter().position(|job| job.slot.is_none_or(&is_free))?;
        waiting.jobs.remove(next)
    }

    /// Adds an order, if it fits.
    pub(super) fn order(&self, order: Order) -> std::result::Result<(), Full> {
        let mut waiting = self.lock();
        waiting.orders.retain(Order::is_wanted);
        if waiting.orders.len() >= self.capacity {
            return Err(Full);
        }
        waiting.orders.push_back(order);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next order that can be followed.
    pub(super) fn pop_order(&self, can: impl Fn(&Action) -> bool) -> Option<Order> {
        let mut waiting = self.lock();
        waiting.orders.retain(Order::is_wanted);
        let next = waiting.orders.iter().position(|order| can(&order.what))?;
        waiting.orders.remove(next)
    }

    /// Sleeps until there is something to do, or for `most`; true if that has passed.
    pub(super) fn wait(&self, most: Option<Duration>) -> bool {
        let idle = |waiting: &mut Waiting| {
            waiting.jobs.is_empty() && waiting.orders.is_empty() && !waiting.closed
        };
        let waiting = self.lock();
        let Some(most) = most else {
            drop(self.arrived.wait_while(waiting, idle));
            return false;
        };
        let woken = self.arrived.wait_timeout_while(waiting, most, idle);
        woken.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sleeps for `most`, or until it is closed; true if it is.
    pub(super) fn wait_closed(&self, most: Duration) -> bool {
        let open = |waiting: &mut Waiting| !waiting.closed;
        let woken = self.arrived.wait_timeout_while(self.lock(), most, open);
        woken.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Has the engine's thread end after its present turn.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Whether it is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ends all that wait.
    pub(super) fn fail(&self, fault: &Error) {
        let mut waiting = self.lock();
        for job in waiting.jobs.drain(..) {
            let error = Error::Device(fault.to_string());
            let _ = job.events.send((job.choice, Event::Failed(error)));
        }
        for order in waiting.orders.drain(..) {
            let _ = order.done.send(Err(Error::Device(fault.to_string())));
        }
    }

    /// Jobs that wait and whose clients do.
    pub(super) fn len(&self) -> usize {
        self.lock().jobs.iter().filter(|job| !job.events.is_closed()).count()
    }

    /// Whether an order waits that can be followed.
    pub(super) fn has_order(&self, can: impl Fn(&Action) -> bool) -> bool {
        self.lock().orders.iter().any(|order| order.is_wanted() && can(&order.what))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The lists are whole at every moment.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No more jobs can wait.
#[derive(Debug)]
pub(super) struct Full;

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, time::Instant};

    fn order(
        queue: &Queue,
        what: Action,
    ) -> std::result::Result<oneshot::Receiver<Result<Moved>>, Full> {
        let (done, moved) = oneshot::channel();
        queue.order(Order { what, done }).map(|()| moved)
    }

    #[test]
    fn orders_of_clients_that_have_gone_are_dropped_but_for_those_to_forget() {
        let queue = Queue::new(1);
        drop(order(&queue, Action::Erase(0)).unwrap());
        assert!(!queue.has_order(|_| true));
        // There is room again.
        let waiting = order(&queue, Action::Erase(1)).unwrap();
        assert!(order(&queue, Action::Erase(2)).is_err());
        assert!(queue.has_order(|_| true) && !queue.has_order(|_| false));
        assert!(queue.pop_order(|_| false).is_none());
        assert!(matches!(queue.pop_order(|_| true).unwrap().what, Action::Erase(1)));
        drop(waiting);
        drop(order(&queue, Action::Forget("x".into())).unwrap());
        assert!(matches!(queue.pop_order(|_| true).unwrap().what, Action::Forget(_)));
    }

    #[test]
    fn a_pause_ends_when_the_queue_is_closed() {
        let queue = Arc::new(Queue::new(1));
        let _waiting = order(&queue, Action::Erase(0)).unwrap();
        // Nothing else ends it.
        assert!(!queue.wait_closed(Duration::from_millis(1)));
        let (closing, started) = (queue.clone(), Instant::now());
        let closer = thread::spawn(move || closing.close());
        assert!(queue.wait_closed(Duration::from_secs(600)));
        assert!(started.elapsed() < Duration::from_secs(60));
        closer.join().unwrap();
    }
}
