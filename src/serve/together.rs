//! A token for each of several slots, by one step and one read.

use std::time::Instant;

use super::slot::{Slot, Work};
use crate::Engine;

/// Takes a token further the requests of `slots`, all of which need one, at most as many as can
/// step together. What goes wrong with one ends that one.
pub(super) fn step(engine: &mut Engine, mut slots: Vec<&mut Slot>) -> Work {
    let started = Instant::now();
    let count = slots.len() as u32;
    let mut batch: Vec<_> = slots.iter_mut().filter_map(|slot| slot.token()).collect();
    if let Err(error) = engine.decode_each(&mut batch) {
        // Some may have failed for lack of memory alone.
        slots.iter_mut().for_each(|slot| slot.decode_alone(engine, &error));
    }
    slots.retain(|slot| !slot.is_free());
    slots.iter_mut().for_each(|slot| slot.appended());
    let wanted: Vec<_> = slots.iter().filter_map(|slot| slot.wanted(engine.top())).collect();
    let chosen = match engine.outcomes(&wanted) {
        Ok(outcomes) => {
            let each = slots.iter_mut().zip(outcomes);
            each.filter_map(|(slot, outcome)| slot.choose(engine, outcome).then_some(())).count()
        }
        Err(error) => {
            slots.iter_mut().for_each(|slot| slot.fail(&error));
            0
        }
    };
    let time = started.elapsed();
    slots.iter_mut().for_each(|slot| slot.charge(time / count));
    Work { chosen, time, failed: chosen < count as usize, ..Work::default() }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            queue::{Event, Job},
            slot::Needs,
        },
        *,
    };
    use crate::{
        EngineOptions, Error,
        gpu::{DeviceOptions, Restrictions},
        history::CheckpointOptions,
        kv::{KvHost, Placement},
    };
    use std::{path::Path, time::Duration};
    use tokio::sync::mpsc::unbounded_channel;

    /// Memory that one of two lacks for its next token ends that one; the other has its token.
    #[test]
    fn one_that_cannot_grow_ends_alone() {
        const SEGMENT: usize = 512;
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        let restrict = Restrictions { max_binding: Some(32 << 10), ..Default::default() };
        let options = EngineOptions {
            device: DeviceOptions { restrict, ..Default::default() },
            sequences: 2,
            ..Default::default()
        };
        let file = fixtures.join("tiny-llama.gguf");
        let mut engine = Engine::load(&file, &options, &mut |_, _| ()).unwrap();
        let checkpoints = CheckpointOptions { memory: 0, count: 0, every: SEGMENT };
        let mut begin = |tokens| {
            let (events, received) = unbounded_channel();
            let mut slot = Slot::default();
            let job = Job::of(vec![7; tokens], events);
            slot.start(&engine, job, Duration::ZERO, &checkpoints);
            while slot.needs() == Some(Needs::Prompt) {
                slot.prefill(&mut engine, &checkpoints, &|| false);
            }
            (slot, received)
        };
        // Full but for one token, and not so.
        let ((mut full, mut told), (mut other, _kept)) = (begin(SEGMENT - 1), begin(10));
        let (wish, device) = (KvHost::Off, engine.memory().device.kv);
        engine.place(Placement { wish, in_place: false, device, host: 0 });
        let steps = |engine: &mut Engine, slots: [&mut Slot; 2]| step(engine, slots.into());
        // A token is chosen of the prompt's logits before it is appended.
        for _ in 0..2 {
            let work = steps(&mut engine, [&mut full, &mut other]);
            assert_eq!((work.chosen, work.failed), (2, false));
        }
        let work = steps(&mut engine, [&mut full, &mut other]);
        assert_eq!((work.chosen, work.failed), (1, true));
        assert!(full.is_free());
        assert_eq!(other.held().len(), 10 + 2);
        let last = std::iter::from_fn(|| told.try_recv().ok()).last();
        assert!(matches!(last, Some((0, Event::Failed(Error::Memory(_))))), "{last:?}");
    }
}
