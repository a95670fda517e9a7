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
