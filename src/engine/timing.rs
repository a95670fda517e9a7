//! What is measured of steps: every op where that is wanted, or of decoding only what reads keys
//! and values.

use super::EngineOptions;
use crate::{
    Result,
    gpu::{Gpu, Lap, Profile, Recording, Stopwatch},
    model::{ModelConfig, config::LayerKind},
};

/// Times of dispatches so far.
#[derive(Debug)]
pub(super) struct Timing {
    watch: Stopwatch,
    pub(super) profile: Option<Profile>,
    reads: Option<ReadTime>,
}

/// How long decoding has read keys and values.
#[derive(Debug)]
struct ReadTime {
    /// The op that reads them where they are stored.
    op: &'static str,
    /// None: the device has no timestamps.
    ns: Option<f64>,
}

impl ReadTime {
    /// Of a model whose attention layers all read with the same op.
    fn of(config: &ModelConfig) -> Option<Self> {
        let has = |kind| config.layers.contains(&kind);
        let op = match (has(LayerKind::Attention), has(LayerKind::SparseAttention)) {
            (true, false) => "attention",
            // Attention itself then reads what was gathered.
            (false, true) => "sparse_gather",
            _ => return None,
        };
        Some(Self { op, ns: Some(0.0) })
    }

    fn add(&mut self, (op, ns): Lap) {
        if op == self.op {
            self.ns = self.ns.zip(ns).map(|(sum, ns)| sum + ns);
        }
    }
}

impl Timing {
    pub(super) fn new(options: &EngineOptions, config: &ModelConfig) -> Self {
        Self {
            watch: Stopwatch::default(),
            profile: options.profile.then(Profile::default),
            reads: if options.time_reads { ReadTime::of(config) } else { None },
        }
    }

    /// Whether steps of few tokens are submitted in another way than others.
    pub(super) fn measures(&self) -> bool {
        self.profile.is_some() || self.reads.is_some()
    }

    /// Submits a recording of a step of `n` tokens if it is to be measured, and says whether.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub(super) fn submit(&mut self, gpu: &Gpu, recording: &Recording, n: u32) -> Result<bool> {
        let mut reads = self.reads.as_mut().filter(|_| n == 1);
        if let Some(profile) = &mut self.profile {
            gpu.submit_timed(recording, &mut self.watch, |_| true)?;
            for lap in self.watch.laps(gpu)? {
                profile.add(lap);
                reads.iter_mut().for_each(|reads| reads.add(lap));
            }
            return Ok(true);
        }
        let Some(reads) = reads else { return Ok(false) };
        gpu.submit_timed(recording, &mut self.watch, |op| op == reads.op)?;
        self.watch.known().for_each(|lap| reads.add(lap));
        Ok(true)
    }

    /// Nanoseconds that decoding has read keys and values, where that is measured; waits for the
    /// device.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub(super) fn reads(&mut self, gpu: &Gpu) -> Result<Option<f64>> {
        let Some(reads) = &mut self.reads else { return Ok(None) };
        self.watch.laps(gpu)?.into_iter().for_each(|lap| reads.add(lap));
        Ok(reads.ns)
    }
}
