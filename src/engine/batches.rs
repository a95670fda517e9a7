//! Recordings of steps that several sequences take together, kept for when the same ones do so
//! again, and no longer than all of them are there.

use crate::{gpu::Recording, sequence::StepShape};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicU64, Ordering},
};

/// The number of the next sequence.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The recordings, those used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Batches(Arc<Mutex<Vec<Batch>>>);

#[derive(Debug)]
struct Batch {
    members: Vec<u64>,
    shape: StepShape,
    pieces: Vec<Recording>,
}

/// A sequence's name among those it steps with; the recordings that have its state in them go
/// with it.
#[derive(Debug)]
pub(crate) struct Member {
    number: u64,
    kept: Weak<Mutex<Vec<Batch>>>,
}

impl Batches {
    /// How many are kept: sequences come and go one at a time, and meet again seldom.
    pub(crate) const KEPT: usize = 8;

    /// A name for a new sequence.
    pub(crate) fn member(&self) -> Member {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Member { number, kept: Arc::downgrade(&self.0) }
    }

    /// Takes out the pieces of a step of `members`, if they are kept.
    pub(super) fn take(&self, members: &[u64], shape: &StepShape) -> Option<Vec<Recording>> {
        let mut batches = lock(&self.0);
        let same = |batch: &Batch| batch.members == members && batch.shape == *shape;
        batches.iter().position(same).map(|i| batches.remove(i).pieces)
    }

    /// Keeps the pieces of a step of `members`.
    pub(super) fn keep(&self, members: Vec<u64>, shape: StepShape, pieces: Vec<Recording>) {
        let mut batches = lock(&self.0);
        if batches.len() >= Self::KEPT {
            batches.remove(0);
        }
        batches.push(Batch { members, shape, pieces });
    }
}

impl Member {
    /// No other sequence has it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.upgrade() {
            lock(&kept).retain(|batch| !batch.members.contains(&self.number));
        }
    }
}

fn lock(kept: &Mutex<Vec<Batch>>) -> MutexGuard<'_, Vec<Batch>> {
    // The list is whole at every moment.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
