//! Prefills on a simulated device: what each dispatch takes follows from its kernel, its
//! workgroups and the keys that it reads, and time passes by adding it up.

use super::*;

const KERNELS: usize = 12;
const ATTENTION: usize = 11;
/// Tokens of a step, and keys of one dispatch of attention at most.
const CHUNK: u32 = 512;
const PIECE: u32 = 8192;

/// Nanoseconds that a dispatch of each kernel takes on an integrated GPU of some 10 TFLOP/s; of
/// attention, the last, 64 keys: 16 ms a piece.
const SLOW: [f64; KERNELS] = [2e4, 5e4, 1e5, 8e6, 2e5, 3e6, 8e6, 1e6, 5e5, 3e4, 8e4, 1.2e5];

/// The step of `CHUNK` tokens behind `history`: 48 layers, each fourth of which reads it.
fn step(history: u32) -> Vec<Load> {
    let mut step = Vec::new();
    let mut add = |kernel, workgroups, units| step.push(Load { kernel, workgroups, units });
    for layer in 0..48 {
        for kernel in 0..ATTENTION {
            // One of a single workgroup, others of many.
            add(kernel, [1, 512, 4096, 2048][kernel % 4], 1);
        }
        if layer % 4 == 3 {
            let seen = history + CHUNK;
            for first in (0..seen).step_by(PIECE as usize) {
                add(ATTENTION, 4096, PIECE.min(seen - first).into());
            }
        }
    }
    step
}

/// Runs a prefill from `from` to `to` tokens of history where `slower` says how much slower the
/// device has become; returns how long each submission took, in seconds.
fn prefill(pace: &mut Pace, (from, to): (u32, u32), slower: impl Fn(u32) -> f64) -> Vec<f64> {
    let mut taken = Vec::new();
    for history in (from..to).step_by(CHUNK as usize) {
        // What does not grow with the keys is there, too.
        let cost = |load: &Load| SLOW[load.kernel] * 1e-9 * (load.units + 63) as f64 / 64.0;
        let run = |part: &[Load]| {
            // Telling the device and hearing of it takes time as well.
            let time = 5e-5 + part.iter().map(cost).sum::<f64>() * slower(history);
            taken.push(time);
            Ok(Duration::from_secs_f64(time))
        };
        in_portions(&step(history), pace, |load| Some(*load), run).unwrap();
    }
    taken
}

fn longest(taken: &[f64]) -> f64 {
    taken.iter().copied().fold(0.0, f64::max)
}

const LONG: (u32, u32) = (0, 256 << 10);

/// Known fault: submissions ran until a driver's watchdog ended them.
#[test]
fn a_long_prefill_stays_within_the_limit() {
    for slower in [0.1, 1.0, 4.0] {
        let taken = prefill(&mut Pace::default(), LONG, |_| slower);
        assert!(longest(&taken) <= LIMIT.as_secs_f64(), "{slower}: {}", longest(&taken));
        // And what it costs to wait is little.
        let (whole, waits) = (taken.iter().sum::<f64>(), 5e-5 * taken.len() as f64);
        assert!(waits < 0.01 * whole, "{slower}: {} submissions, {whole} s", taken.len());
    }
}

#[test]
fn a_device_that_becomes_slower_is_followed() {
    let at = |change: f64| move |history| if history < 100_000 { 1.0 } else { change };
    let twice = prefill(&mut Pace::default(), LONG, at(1.9));
    assert!(longest(&twice) <= LIMIT.as_secs_f64(), "{}", longest(&twice));
    // Nobody can know before: one is too long, and no other.
    let much = prefill(&mut Pace::default(), LONG, at(6.0));
    let over: Vec<_> = much.iter().filter(|time| **time > LIMIT.as_secs_f64()).collect();
    assert!(over.len() <= 1 && longest(&much) < 1.0, "{over:?}");
}

#[test]
fn a_device_that_becomes_faster_gets_more() {
    let faster = |history| if history < 8192 { 1.0 } else { 0.05 };
    let taken = prefill(&mut Pace::default(), (0, 65536), faster);
    let last = &taken[taken.len() - 20..];
    assert!(last.iter().sum::<f64>() / 20.0 > AIM / 4.0, "{last:?}");
}

/// What was learned at the beginning of a conversation does not hold deep in another.
#[test]
fn a_deep_history_after_a_shallow_one_is_within_the_limit() {
    let mut pace = Pace::default();
    prefill(&mut pace, (0, 2048), |_| 2.0);
    let deep = prefill(&mut pace, (200 << 10, 210 << 10), |_| 2.0);
    assert!(longest(&deep) <= LIMIT.as_secs_f64(), "{}", longest(&deep));
}

/// Decoding waits for nothing but its token, except where the device is slow for the model.
#[test]
fn a_short_step_is_known_once_it_is_measured() {
    let decode: Vec<_> = step(0).iter().map(|load| Load { workgroups: 1, ..*load }).collect();
    for (slower, short) in [(0.01, true), (1.0, false)] {
        let mut pace = Pace::default();
        let fit = |pace: &Pace| pace.fit(decode.iter().map(|load| Some(*load)));
        assert!(!fit(&pace), "nothing is known yet");
        let mut taken = Vec::new();
        let run = |part: &[Load]| {
            let time = part.iter().map(|load| SLOW[load.kernel] * 1e-9).sum::<f64>();
            taken.push(5e-5 + time * slower);
            Ok(Duration::from_secs_f64(5e-5 + time * slower))
        };
        in_portions(&decode, &mut pace, |load| Some(*load), run).unwrap();
        assert_eq!(fit(&pace), short, "{slower}");
        assert!(longest(&taken) <= LIMIT.as_secs_f64(), "{slower}: {}", longest(&taken));
    }
}

#[test]
fn copies_go_with_what_is_around_them() {
    let mut pace = Pace::default();
    let loads = [None, Some(Load { kernel: 3, workgroups: 1, units: 1 }), None, None];
    assert_eq!(pace.portion(loads.into_iter()), 1);
    pace.learn(loads[1].into_iter(), Duration::ZERO);
    assert_eq!(pace.portion(loads.into_iter()), 4);
    assert_eq!(pace.portion([None; 3].into_iter()), 3);
}
