//! Submission and read-back, for which the host waits. Otherwise it waits for the device only when
//! uploads pile up (`device.rs`) and between the parts of a long recording (`pace.rs`).

use super::{
    Buf, Gpu, Heap, MemoryKind, Recording,
    device::lock,
    record::{Command, Dispatch},
};
use crate::{Error, Result};
use std::{ops::Range, time::Instant};

/// A host-readable buffer, made once and reused for every read.
#[derive(Debug)]
pub struct Readback {
    staging: Buf,
}

impl Gpu {
    /// Submits a recording; does not wait.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn submit(&self, recording: &Recording) -> Result<()> {
        let ahead = lock(&recording.ahead).take();
        let commands = ahead.unwrap_or_else(|| self.encode(&recording.commands));
        self.inner().queue.submit([commands]);
        self.check()
    }

    /// Encodes a recording for the next time that it is submitted, while the device works.
    pub fn encode_ahead(&self, recording: &Recording) {
        let commands = self.encode(&recording.commands);
        *lock(&recording.ahead) = Some(commands);
    }

    /// Submits some commands of a recording.
    pub(super) fn submit_part(&self, part: &[Command]) -> Result<()> {
        let commands = self.encode(part);
        self.inner().queue.submit([commands]);
        self.check()
    }

    fn encode(&self, commands: &[Command]) -> wgpu::CommandBuffer {
        let start = Instant::now();
        let mut encoder = self.inner().device.create_command_encoder(&Default::default());
        encode(&mut encoder, commands);
        let commands = encoder.finish();
        self.inner().count_encoding(start.elapsed());
        commands
    }

    /// A read-back buffer for up to `bytes`.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn readback(&self, bytes: u64) -> Result<Readback> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let size = bytes.max(4).next_multiple_of(4);
        Ok(Readback { staging: self.create("read-back", size, usage, MemoryKind::Staging)? })
    }

    /// Reads `bytes` (a multiple of 4) at `offset` once everything submitted is done; for tests
    /// and rare reads. Frequent ones keep a [`Readback`].
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn read(&self, buf: &Buf, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let mut out = vec![0; bytes as usize];
        self.readback(bytes)?.read(self, buf, offset, &mut out)?;
        Ok(out)
    }
}

impl Readback {
    /// Copies `buf[offset..]` into `out` (a multiple of 4 bytes, at most this buffer's size)
    /// once everything submitted is done.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed or `out` is too large.
    pub fn read(&self, gpu: &Gpu, buf: &Buf, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_parts(gpu, &[(buf, offset, out.len() as u64)], out)
    }

    /// The same of the beginnings of several buffers, of so many bytes each, one after the other.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_each(&self, gpu: &Gpu, parts: &[(&Buf, u64)], out: &mut [u8]) -> Result<()> {
        let parts: Vec<_> = parts.iter().map(|(buf, bytes)| (*buf, 0, *bytes)).collect();
        self.read_parts(gpu, &parts, out)
    }

    /// Shows `visit` the first `bytes` of `buf` (a multiple of 4) once everything submitted is done,
    /// in pieces of `piece` (at most this buffer's size). What is in host memory is seen in place.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed, and whatever `visit` returns.
    pub fn stream(
        &self,
        gpu: &Gpu,
        buf: &Buf,
        bytes: u64,
        piece: u64,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if bytes > buf.size() || piece == 0 || piece > self.staging.size() {
            return Err(Error::Device(format!("cannot read {bytes} bytes by {piece}")));
        }
        let mut offset = 0;
        while offset < bytes {
            let n = piece.min(bytes - offset);
            match buf.heap() {
                Heap::Host => mapped(gpu, buf, offset..offset + n, visit)?,
                Heap::Device => {
                    self.stage(gpu, &[(buf, offset, n)])?;
                    mapped(gpu, &self.staging, 0..n, visit)?;
                }
            }
            offset += n;
        }
        Ok(())
    }

    fn read_parts(&self, gpu: &Gpu, parts: &[(&Buf, u64, u64)], out: &mut [u8]) -> Result<()> {
        let bytes = self.stage(gpu, parts)?;
        mapped(gpu, &self.staging, 0..bytes, &mut |seen| {
            out.copy_from_slice(seen);
            Ok(())
        })
    }

    /// Copies ranges of buffers to this one, one after the other; returns their bytes.
    fn stage(&self, gpu: &Gpu, parts: &[(&Buf, u64, u64)]) -> Result<u64> {
        let staging = self.staging.raw()?;
        let mut encoder = gpu.inner().device.create_command_encoder(&Default::default());
        let mut bytes = 0;
        for (buf, offset, part) in parts {
            if bytes + part > self.staging.size() || offset + part > buf.size() {
                return Err(Error::Device(format!("cannot read {part} bytes at {offset}")));
            }
            encoder.copy_buffer_to_buffer(buf.raw()?, *offset, staging, bytes, *part);
            bytes += part;
        }
        gpu.inner().queue.submit([encoder.finish()]);
        gpu.check()?;
        Ok(bytes)
    }
}

/// Shows `visit` a range of a buffer that can be mapped, once everything submitted is done.
fn mapped(
    gpu: &Gpu,
    buf: &Buf,
    range: Range<u64>,
    visit: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let raw = buf.raw()?;
    let slice = raw.slice(range);
    slice.map_async(wgpu::MapMode::Read, |_| ());
    gpu.wait(None)?;
    let failed = |e: &dyn std::fmt::Display| Error::Device(format!("reading failed: {e}"));
    let visited = visit(&slice.get_mapped_range().map_err(|e| failed(&e))?);
    raw.unmap();
    visited
}

fn encode(encoder: &mut wgpu::CommandEncoder, commands: &[Command]) {
    for run in runs(commands) {
        if copy_run(encoder, run) {
            continue;
        }
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for command in run {
            if let Command::Dispatch(d) = command {
                dispatch(&mut pass, d);
            }
        }
    }
}

/// Encodes `run` if it is a copy.
pub(super) fn copy_run(encoder: &mut wgpu::CommandEncoder, run: &[Command]) -> bool {
    let [Command::Copy { from, from_offset, to, to_offset, bytes }] = run else { return false };
    if let (Ok(from), Ok(to)) = (from.raw(), to.raw()) {
        encoder.copy_buffer_to_buffer(from, *from_offset, to, *to_offset, *bytes);
    }
    true
}

/// Dispatches in a row share a pass; a copy stands alone.
pub(super) fn runs(commands: &[Command]) -> impl Iterator<Item = &[Command]> {
    let is_dispatch = |c: &Command| matches!(c, Command::Dispatch(_));
    commands.chunk_by(move |a, b| is_dispatch(a) && is_dispatch(b))
}

pub(super) fn dispatch(pass: &mut wgpu::ComputePass<'_>, d: &Dispatch) {
    pass.set_pipeline(&d.kernel.pipeline);
    pass.set_bind_group(0, &d.bind_group, &[]);
    let [x, y, z] = d.grid;
    pass.dispatch_workgroups(x, y, z);
}
