//! How long dispatches take, from timestamps that the device writes around them.

use super::{
    Buf, Gpu, MemoryKind, Readback, Recording,
    record::Command,
    submit::{copy_run, dispatch, runs},
};
use crate::Result;
use std::ops::Range;

/// An op and the nanoseconds that a dispatch of it took; none where the device has no timestamps.
pub type Lap = (&'static str, Option<f64>);

/// Dispatches that were timed. The device's marks are read when they are asked for, or when there
/// is no room for more.
#[derive(Debug, Default)]
pub struct Stopwatch {
    clock: Option<Clock>,
    /// Op, and the marks before and after it.
    pending: Vec<(&'static str, [u32; 2])>,
    read: Vec<Lap>,
    /// Marks that pending dispatches use.
    used: u32,
}

/// Queries, and where the device puts their results.
#[derive(Debug)]
struct Clock {
    sets: Vec<wgpu::QuerySet>,
    buffer: Buf,
    readback: Readback,
    marks: u32,
}

const SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;
const BYTES: u64 = wgpu::QUERY_SIZE as u64;
/// The marks of a submission start at a multiple of this, where results may be put.
const ALIGN: u32 = (wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT / BYTES) as u32;

impl Gpu {
    /// Submits a recording with timestamps around every dispatch whose op is `timed`. Waits only
    /// where `watch` has no room for them.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed or memory is short.
    pub fn submit_timed(
        &self,
        recording: &Recording,
        watch: &mut Stopwatch,
        timed: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let ops = recording.commands.iter().filter_map(|command| match command {
            Command::Dispatch(d) => Some(d.op).filter(|op| timed(op)),
            Command::Copy { .. } => None,
        });
        if !self.caps().timestamps {
            watch.read.extend(ops.map(|op| (op, None)));
            return self.submit(recording);
        }
        let (clock, first) = watch.room(self, 2 * ops.count() as u32)?;
        let mut encoder = self.inner().device.create_command_encoder(&Default::default());
        let mut next = first;
        let mut laps = Vec::new();
        for run in runs(&recording.commands) {
            if copy_run(&mut encoder, run) {
                continue;
            }
            let mut pass = encoder.begin_compute_pass(&Default::default());
            // The mark after a dispatch is the one before the next.
            let mut before = None;
            for command in run {
                let Command::Dispatch(d) = command else { continue };
                let is_timed = timed(d.op);
                if is_timed && before.is_none() {
                    clock.mark(&mut pass, next);
                    before = Some(next);
                    next += 1;
                }
                dispatch(&mut pass, d);
                before = before.filter(|_| is_timed).map(|before| {
                    clock.mark(&mut pass, next);
                    laps.push((d.op, [before, next]));
                    next += 1;
                    next - 1
                });
            }
        }
        clock.resolve(&mut encoder, first..next)?;
        watch.pending.append(&mut laps);
        watch.used = next;
        self.inner().queue.submit([encoder.finish()]);
        self.check()
    }
}

impl Stopwatch {
    /// All dispatches timed since the last call; waits for the device.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn laps(&mut self, gpu: &Gpu) -> Result<Vec<Lap>> {
        self.collect(gpu)?;
        Ok(std::mem::take(&mut self.read))
    }

    /// Those of them whose time is known without waiting.
    pub fn known(&mut self) -> impl Iterator<Item = Lap> {
        self.read.drain(..)
    }

    /// A clock with room for as many marks, and the first of them.
    fn room(&mut self, gpu: &Gpu, marks: u32) -> Result<(&Clock, u32)> {
        let first = self.used.next_multiple_of(ALIGN);
        let fits = |first| move |clock: &Clock| first + marks <= clock.marks;
        if self.clock.as_ref().is_some_and(fits(first)) {
            return Ok((self.clock.as_ref().expect("it has room"), first));
        }
        self.collect(gpu)?;
        let clock = match self.clock.take().filter(fits(0)) {
            Some(clock) => clock,
            None => Clock::new(gpu, marks.max(ALIGN))?,
        };
        Ok((self.clock.insert(clock), 0))
    }

    /// Reads what is pending.
    fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        if let Some(clock) = self.clock.as_ref().filter(|_| !self.pending.is_empty()) {
            let marks = clock.read(gpu, self.used)?;
            let time = |[before, after]: [u32; 2]| marks[after as usize] - marks[before as usize];
            let laps = self.pending.drain(..).map(|(op, lap)| (op, Some(time(lap).max(0.0))));
            self.read.extend(laps);
        }
        self.used = 0;
        Ok(())
    }
}

impl Clock {
    fn new(gpu: &Gpu, marks: u32) -> Result<Self> {
        let set = |i: u32| {
            gpu.inner().device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: (marks - i * SET).min(SET),
            })
        };
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let size = u64::from(marks) * BYTES;
        Ok(Self {
            sets: (0..marks.div_ceil(SET)).map(set).collect(),
            buffer: gpu.create("timestamps", size, usage, MemoryKind::Staging)?,
            readback: gpu.readback(size)?,
            marks,
        })
    }

    fn mark(&self, pass: &mut wgpu::ComputePass<'_>, i: u32) {
        pass.write_timestamp(&self.sets[(i / SET) as usize], i % SET);
    }

    fn resolve(&self, encoder: &mut wgpu::CommandEncoder, marks: Range<u32>) -> Result<()> {
        let mut first = marks.start;
        while first < marks.end {
            let end = marks.end.min((first / SET + 1) * SET);
            let (set, offset) = (&self.sets[(first / SET) as usize], u64::from(first) * BYTES);
            let from = first % SET;
            encoder.resolve_query_set(set, from..from + end - first, self.buffer.raw()?, offset);
            first = end;
        }
        Ok(())
    }

    /// Waits and returns the first marks in nanoseconds.
    fn read(&self, gpu: &Gpu, marks: u32) -> Result<Vec<f64>> {
        let mut ticks = vec![0_u64; marks as usize];
        self.readback.read(gpu, &self.buffer, 0, bytemuck::cast_slice_mut(&mut ticks))?;
        let period = f64::from(gpu.inner().queue.get_timestamp_period());
        Ok(ticks.into_iter().map(|ticks| ticks as f64 * period).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::Recorder,
        ops::{bias, testing::each_device},
    };

    #[test]
    fn what_is_timed_is_told_once_and_in_order() {
        each_device(|t| {
            let (x, b) = (t.upload(&[1.0; 64], 64), t.upload(&[1.0; 64], 64));
            let mut rec = Recorder::new(&t.gpu);
            for _ in 0..3 {
                bias::record(&mut rec, &b, &x, 1).unwrap();
            }
            let recording = rec.finish().unwrap();
            let mut watch = Stopwatch::default();
            assert_eq!(watch.laps(&t.gpu).unwrap(), []);
            // More than there is room for at first.
            for _ in 0..20 {
                t.gpu.submit_timed(&recording, &mut watch, |op| op == "bias").unwrap();
                t.gpu.submit_timed(&recording, &mut watch, |_| false).unwrap();
            }
            let laps = watch.laps(&t.gpu).unwrap();
            assert_eq!(laps.len(), 60);
            for (op, ns) in laps {
                assert_eq!((op, ns.is_some()), ("bias", t.gpu.caps().timestamps));
                assert!(ns.is_none_or(|ns| (0.0..1e9).contains(&ns)), "{ns:?}");
            }
            assert_eq!(watch.laps(&t.gpu).unwrap(), []);
            assert_eq!(t.read(&x)[0], 121.0, "the work is done as well");
        });
    }
}
