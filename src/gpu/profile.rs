//! Time per op, from GPU timestamps.

use super::{Gpu, MemoryKind};
use crate::Result;
use std::collections::BTreeMap;

/// Time and dispatches of one op.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct OpTime {
    /// Dispatches.
    pub count: u64,
    /// Nanoseconds; 0 where the adapter has no timestamps.
    pub ns: f64,
}

/// Sums by op name.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Profile {
    /// Op name to its sums.
    pub ops: BTreeMap<&'static str, OpTime>,
}

impl Profile {
    pub(super) fn count(&mut self, ops: &[&'static str]) {
        for &op in ops {
            self.ops.entry(op).or_default().count += 1;
        }
    }

    /// `marks[i]` and `marks[i + 1]` enclose `ops[i]`.
    pub(super) fn add(&mut self, ops: &[&'static str], marks: &[f64]) {
        self.count(ops);
        for (&op, pair) in ops.iter().zip(marks.windows(2)) {
            self.ops.entry(op).or_default().ns += (pair[1] - pair[0]).max(0.0);
        }
    }
}

/// Query sets for one profiled submission.
pub(super) struct Clock {
    sets: Vec<wgpu::QuerySet>,
    buffer: super::Buf,
    marks: u32,
}

const SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;
const BYTES: u64 = wgpu::QUERY_SIZE as u64;

impl Clock {
    pub(super) fn new(gpu: &Gpu, dispatches: u32) -> Result<Self> {
        let marks = dispatches + 1;
        let set = |i: u32| {
            gpu.inner().device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("profile"),
                ty: wgpu::QueryType::Timestamp,
                count: (marks - i * SET).min(SET),
            })
        };
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let size = u64::from(marks) * BYTES;
        let buffer = gpu.create("timestamps", size, usage, MemoryKind::Staging)?;
        Ok(Self { sets: (0..marks.div_ceil(SET)).map(set).collect(), buffer, marks })
    }

    pub(super) fn mark(&self, pass: &mut wgpu::ComputePass<'_>, i: u32) {
        pass.write_timestamp(&self.sets[(i / SET) as usize], i % SET);
    }

    pub(super) fn resolve(&mut self, encoder: &mut wgpu::CommandEncoder) {
        let Ok(buffer) = self.buffer.raw() else { return };
        for (i, set) in (0..).zip(&self.sets) {
            let count = (self.marks - i * SET).min(SET);
            let offset = u64::from(i * SET) * BYTES;
            encoder.resolve_query_set(set, 0..count, buffer, offset);
        }
    }

    /// Waits and returns all marks in nanoseconds.
    pub(super) fn read(self, gpu: &Gpu) -> Result<Vec<f64>> {
        let bytes = gpu.read(&self.buffer, 0, self.buffer.size())?;
        let period = f64::from(gpu.inner().queue.get_timestamp_period());
        let ticks = bytes.chunks_exact(BYTES as usize);
        Ok(ticks
            .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")) as f64 * period)
            .collect())
    }
}
