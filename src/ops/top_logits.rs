//! What choosing a token takes of the logits, found on the device: the largest, and for sampling
//! those that most filters leave.

use super::Tensor;
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    shader::Variant,
};

/// Bytes of the largest logit's index and of what is wrong with the logits.
pub const BEST_BYTES: u64 = 8;
/// Bytes of both and of the largest logits.
pub const BYTES: u64 = 16 + 8 * ROOM as u64;
/// Of so many of the largest logits none is left out.
pub const TOP: usize = 128;

/// Largest logits that there is room for: more than [`TOP`] where several are equal, or where some
/// of the least of them fell in the same parts of the vocabulary.
const ROOM: u32 = 1024;
/// Workgroups that look through the logits: the longest vocabularies give each lane 16.
const PARTS: u32 = 64;
/// Parts of a workgroup's share whose largest logit is known.
const GROUPS: u32 = 32;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    width: u32,
    parts: u32,
    wanted: u32,
    room: u32,
    bests: u32,
    maxima: u32,
}

/// A buffer for the result, with room behind it for what workgroups find.
///
/// # Errors
/// [`Error::Device`] when memory is short.
pub fn buffer(gpu: &dyn Memory) -> Result<Buf> {
    let found = 4 * u64::from(PARTS) * (2 + u64::from(GROUPS));
    gpu.alloc("choice", BYTES + found, MemoryKind::Scratch)
}

/// Writes to `choice` (of [`buffer`]), as its first [`BYTES`], what [`best`] and [`top`] read of the
/// first row of `logits`.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(rec: &mut Recorder, logits: &Tensor, choice: &Buf) -> Result<()> {
    let op = "top_logits";
    logits.expect(op, "logits", 1, logits.width.max(1))?;
    let bests = (BYTES / 4) as u32;
    let params = Params {
        width: logits.width,
        parts: PARTS,
        wanted: TOP as u32,
        room: ROOM,
        bests,
        maxima: bests + 2 * PARTS,
    };
    let variant = |stage| Variant::new(op).choose("stage", stage);
    let (all, one) = (Grid::Dims([PARTS, 1, 1]), Grid::Dims([1, 1, 1]));
    let bindings = [choice.into(), (&logits.buf).into()];
    rec.dispatch(op, &variant("scan"), &bindings, &params, all)?;
    rec.dispatch(op, &variant("merge"), &bindings[..1], &params, one)?;
    rec.dispatch(op, &variant("collect"), &bindings, &params, all)
}

/// The index of the largest logit, the lowest of equals, as the first [`BEST_BYTES`] tell it.
///
/// # Errors
/// [`Error::Sampling`] when a logit was NaN or plus infinity, or all were minus infinity.
pub fn best(bytes: &[u8]) -> Result<u32> {
    let [index, fault]: [u32; 2] = bytemuck::pod_read_unaligned(&bytes[..BEST_BYTES as usize]);
    match fault {
        0 => Ok(index),
        _ => Err(Error::Sampling(
            "the logits are not usable: a NaN, plus infinity, or nothing but minus infinity".into(),
        )),
    }
}

/// Token and logit of at least the [`TOP`] largest, and of every other that equals one of them, by
/// token, without those of minus infinity; as [`BYTES`] tell them. None: more are equal than there
/// was room for.
///
/// # Errors
/// As [`best`].
pub fn top(bytes: &[u8]) -> Result<Option<Vec<(u32, f32)>>> {
    best(bytes)?;
    let count: u32 = bytemuck::pod_read_unaligned(&bytes[12..16]);
    let pair = |pair: &[u8]| {
        let [index, bits]: [u32; 2] = bytemuck::pod_read_unaligned(pair);
        (index, f32::from_bits(bits))
    };
    if count > ROOM {
        return Ok(None);
    }
    let mut pairs: Vec<_> = bytes[16..].chunks_exact(8).take(count as usize).map(pair).collect();
    pairs.sort_unstable_by_key(|(index, _)| *index);
    Ok(Some(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{TestDevice, each_device, random};

    fn run(t: &TestDevice, logits: &[f32]) -> Vec<u8> {
        let x = t.upload(logits, logits.len());
        let choice = buffer(&t.gpu).unwrap();
        t.run(|rec| record(rec, &x, &choice));
        t.gpu.read(&choice, 0, BYTES).unwrap()
    }

    /// The best is `want`, and the top has what it says.
    fn check(logits: &[f32], want: Option<u32>) {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.retain(|i| logits[*i as usize] > f32::NEG_INFINITY);
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        each_device(|t| {
            let bytes = run(t, logits);
            assert_eq!(best(&bytes).ok(), want, "{} logits", logits.len());
            let Some(mut found) = top(&bytes).ok().flatten() else {
                let equal = order.get(TOP).filter(|_| want.is_some());
                let equal = equal.map(|least| logits[*least as usize]);
                let count = logits.iter().filter(|v| equal.is_some_and(|e| **v >= e)).count();
                assert!(want.is_none() || count > TOP, "{} logits: no top", logits.len());
                return;
            };
            assert!(want.is_some() && found.is_sorted_by_key(|(i, _)| *i));
            found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            found.iter().for_each(|(i, v)| assert_eq!(logits[*i as usize].to_bits(), v.to_bits()));
            let ids: Vec<u32> = found.iter().map(|(i, _)| *i).collect();
            assert!(ids.len() >= TOP.min(order.len()), "{} of {}", ids.len(), logits.len());
            // Neither one that is larger nor one that is equal is left out.
            let least = found.last().map_or(f32::INFINITY, |(_, v)| *v);
            let same = order.iter().filter(|i| logits[**i as usize] >= least).count();
            assert_eq!(ids.len(), same, "{} logits", logits.len());
        });
    }

    #[test]
    fn the_largest_and_the_lowest_of_equals() {
        for n in [1, 2, 127, 128, 129, 255, 256, 257, 5000, 248_320] {
            let logits = random(n as u64, n);
            let best = (0..n).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            check(&logits, Some(best as u32));
        }
        check(&[-1.0; 700], Some(0));
        let mut twice = vec![0.0; 900];
        (twice[260], twice[519]) = (1.0, 1.0);
        check(&twice, Some(260));
        check(&[f32::NEG_INFINITY, -5.0], Some(1));
        check(&[-0.0, 0.0], Some(0));
    }

    #[test]
    fn many_equals_and_many_impossible_ones() {
        // Seventeen values, of which hundreds are equal; nearly all the same; all in one part.
        let steps: Vec<f32> = (0..9000).map(|i| (i * 37 % 17) as f32).collect();
        check(&steps, Some(11));
        let mut flat = vec![2.0; 40_000];
        flat[30_000] = 3.0;
        check(&flat, Some(30_000));
        let mut banned = vec![f32::NEG_INFINITY; 40_000];
        (0..200).for_each(|i| banned[i * 190 + 7] = -(i as f32));
        check(&banned, Some(7));
        let mut close = random(5, 60_000);
        close[..300].iter_mut().enumerate().for_each(|(i, v)| *v = 5.0 + i as f32);
        check(&close, Some(299));
        let falling: Vec<f32> = (0..50_000).map(|i| -(i as f32)).collect();
        check(&falling, Some(0));
    }

    #[test]
    fn unusable_logits_are_a_fault() {
        for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
            for place in [0, 3, 600] {
                let mut logits = random(1, 601);
                logits[place] = bad;
                check(&logits, None);
            }
        }
        check(&[f32::NEG_INFINITY; 300], None);
    }
}
