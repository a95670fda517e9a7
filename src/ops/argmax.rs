//! The largest logit, found on the device.

use super::Tensor;
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    shader::Variant,
};

/// Bytes of the result: the index of the largest logit, and what is wrong with the logits.
pub const BYTES: u64 = 8;

/// Workgroups of the first dispatch: the longest vocabularies give each lane 16 logits.
const PARTS: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    width: u32,
    parts: u32,
}

/// A buffer for the result, with room behind it for what workgroups find.
///
/// # Errors
/// [`Error::Device`] when memory is short.
pub fn buffer(gpu: &dyn Memory) -> Result<Buf> {
    gpu.alloc("choice", BYTES * (1 + u64::from(PARTS)), MemoryKind::Scratch)
}

/// Writes to `choice` (of [`buffer`]), as its first [`BYTES`], what [`decode`] reads of the first
/// row of `logits`.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(rec: &mut Recorder, logits: &Tensor, choice: &Buf) -> Result<()> {
    logits.expect("argmax", "logits", 1, logits.width.max(1))?;
    let params = Params { width: logits.width, parts: PARTS };
    let variant = |merge| Variant::new("argmax").flag("merge", merge);
    let bindings = [choice.into(), (&logits.buf).into()];
    rec.dispatch("argmax", &variant(false), &bindings, &params, Grid::Dims([PARTS, 1, 1]))?;
    rec.dispatch("argmax", &variant(true), &[choice.into()], &params, Grid::Dims([1, 1, 1]))
}

/// The index of the largest logit, the lowest of equals, as the first [`BYTES`] tell it.
///
/// # Errors
/// [`Error::Sampling`] when a logit was NaN or plus infinity, or all were minus infinity.
pub fn decode(bytes: &[u8]) -> Result<u32> {
    let [index, fault]: [u32; 2] = bytemuck::pod_read_unaligned(bytes);
    match fault {
        0 => Ok(index),
        _ => Err(Error::Sampling(
            "the logits are not usable: a NaN, plus infinity, or nothing but minus infinity".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{each_device, random};

    fn check(logits: &[f32], want: Option<u32>) {
        each_device(|t| {
            let x = t.upload(logits, logits.len());
            let choice = buffer(&t.gpu).unwrap();
            t.run(|rec| record(rec, &x, &choice));
            let bytes = t.gpu.read(&choice, 0, BYTES).unwrap();
            assert_eq!(decode(&bytes).ok(), want, "{} logits", logits.len());
        });
    }

    #[test]
    fn the_largest_and_the_lowest_of_equals() {
        for n in [1, 2, 255, 256, 257, 5000, 248_320] {
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
