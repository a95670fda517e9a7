//! What becomes of what slots hold: it is saved when another conversation takes the slot, when
//! nothing else is to do, and at the end, and loaded for a prompt that starts like it.

use std::time::{Duration, Instant};

use super::{
    queue::{Action, Job, Moved, Order},
    scheduler::Scheduler,
    slot::{Slot, Work},
    store::{Store, automatic, is_automatic},
};
use crate::{Error, Result};

/// A file is read if it saves so many tokens more than the slot does.
const GAIN: usize = 256;

/// Slots with a request, and the files that they are kept in.
pub(super) struct Busy(Vec<(usize, Option<String>)>);

impl Busy {
    /// Whether `action` is about one of them.
    pub(super) fn concerns(&self, action: &Action) -> bool {
        self.0.iter().any(|(index, session)| match action {
            Action::Save(slot, _) | Action::Restore(slot, _) | Action::Erase(slot) => slot == index,
            Action::Forget(name) => *session == Some(automatic(name)),
        })
    }
}

impl Scheduler {
    /// Makes slot `index`, which is to take `job`, hold as much of its prompt as is known, and saves
    /// what that replaces.
    pub(super) fn fetch(&mut self, index: usize, job: &Job) {
        let Some(store) = &self.store else { return };
        let slot = &self.slots[index];
        let held = if job.reuse { slot.reusable(&job.prompt) } else { 0 };
        let session = job.session.as_deref().map(automatic);
        let is_same = match &session {
            Some(name) => slot.session() == Some(name),
            // It keeps more than it gives up.
            None => held * 2 >= slot.held().len(),
        };
        let best = store.best(&self.engine, &job.prompt).filter(|_| job.reuse);
        let found = best.filter(|(_, tokens)| *tokens >= held + GAIN);
        if is_same && found.is_none() {
            return;
        }
        self.keep(index, found.as_ref().map(|(name, _)| name.as_str()));
        let Some(store) = &mut self.store else { return };
        let loaded =
            found.and_then(|(name, _)| match self.slots[index].load(&self.engine, store, &name) {
                Ok(_) => Some(name),
                Err(error) => {
                    tracing::warn!("{error}: the prompt is processed");
                    None
                }
            });
        let slot = &self.slots[index];
        let goes_on = slot.reusable(&job.prompt) * 2 >= slot.held().len();
        let own = loaded.filter(|name| {
            let is_taken = self.slots.iter().any(|other| other.session() == Some(name));
            goes_on && is_automatic(name) && !is_taken
        });
        let name = session.or(own);
        for slot in &mut self.slots {
            if name.is_some() && slot.session() == name.as_deref() {
                slot.rename(None);
            }
        }
        self.slots[index].rename(name);
        self.bound_checkpoints();
    }

    /// Saves what slot `index` holds, if that is worth it and not done. The file `next`, which is to
    /// be loaded after that, stays as it is.
    fn keep(&mut self, index: usize, next: Option<&str>) {
        let Some(store) = &mut self.store else { return };
        let slot = &mut self.slots[index];
        let own = slot.session().filter(|name| Some(*name) != next);
        let name = own.map_or_else(Store::unused_name, str::to_owned);
        let Some(history) = slot.unsaved() else { return };
        let started = Instant::now();
        let tokens = history.tokens().len();
        let saved = store.save(&self.engine, &name, history, next);
        match &saved {
            Ok(bytes) => tracing::info!(
                "slot {index}: {tokens} tokens saved as {name}, {bytes} bytes in {:.0} ms",
                started.elapsed().as_secs_f64() * 1e3
            ),
            Err(error) => tracing::warn!("slot {index} is not saved: {error}"),
        }
        slot.rename(Some(name));
        slot.set_saved(saved.is_ok());
    }

    /// Saves what all slots hold.
    pub(super) fn keep_all(&mut self) {
        (0..self.slots.len()).for_each(|index| self.keep(index, None));
    }

    /// Sleeps until there is something to do; what is not saved is, if that takes long.
    pub(super) fn rest(&mut self) {
        let mut most = self.idle;
        while most.is_some()
            && let Some(index) = self.slots.iter().position(Slot::is_to_save)
        {
            if !self.queue.wait(most) {
                return;
            }
            self.keep(index, None);
            // Whoever comes meanwhile waits for one file, not for all.
            most = Some(Duration::ZERO);
        }
        self.queue.wait(None);
    }

    /// Follows the orders whose slots are free.
    pub(super) fn obey(&mut self) {
        loop {
            let busy = self.busy();
            let next = self.queue.pop_order(|action| !busy.concerns(action));
            let Some(Order { what, done }) = next else { return };
            let started = Instant::now();
            let moved = self.follow(what);
            let moved = moved.map(|moved| Moved { time: started.elapsed(), ..moved });
            self.bound_checkpoints();
            self.show(Work { failed: moved.is_err(), ..Work::default() }, 0);
            // Whoever has ordered it may have gone.
            let _ = done.send(moved);
        }
    }

    /// The slots that orders have to wait for.
    pub(super) fn busy(&self) -> Busy {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_free());
        Busy(slots.map(|(index, slot)| (index, slot.session().map(str::to_owned))).collect())
    }

    fn follow(&mut self, what: Action) -> Result<Moved> {
        if let Action::Restore(slot, name) = &what {
            self.keep(*slot, Some(name));
        }
        let (engine, slots) = (&self.engine, &mut self.slots);
        match (what, &mut self.store) {
            (Action::Erase(slot), _) => Ok(slots[slot].erase(engine)),
            (Action::Save(slot, name), Some(store)) => {
                let history = slots[slot].history().filter(|history| !history.tokens().is_empty());
                let empty = || Error::Context(format!("slot {slot} holds nothing"));
                let history = history.ok_or_else(empty)?;
                let bytes = store.save(engine, &name, history, None)?;
                Ok(Moved { tokens: history.tokens().len(), bytes, ..Moved::default() })
            }
            (Action::Restore(slot, name), Some(store)) => {
                slots[slot].rename(None);
                slots[slot].load(engine, store, &name)
            }
            (Action::Forget(name), Some(store)) => {
                let name = automatic(&name);
                let holders = slots.iter_mut().filter(|slot| slot.session() == Some(&name));
                for slot in holders {
                    slot.erase(engine);
                }
                store.remove(&name).map(|()| Moved::default())
            }
            (_, None) => Err(Error::Usage("there is no directory for sessions".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_wait_for_what_they_are_about_alone() {
        let busy = Busy(vec![(1, Some("x.auto".into())), (2, None)]);
        let named = |slot| [Action::Save(slot, "f".into()), Action::Restore(slot, "f".into())];
        let about = |slot| named(slot).into_iter().chain([Action::Erase(slot)]);
        assert!(about(1).chain(about(2)).all(|action| busy.concerns(&action)));
        assert!(!about(0).any(|action| busy.concerns(&action)));
        assert!(busy.concerns(&Action::Forget("x".into())));
        assert!(!busy.concerns(&Action::Forget("y".into())));
    }
}
