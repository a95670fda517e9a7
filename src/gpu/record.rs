//! A step as a list of dispatches: built once per shape, replayed as often as wanted. What
//! changes from step to step (token ids, positions) lives in buffers, so a replay is free of
//! host work. Kernels are looked up when the list is whole: new ones compile side by side.

use super::{
    Buf, Gpu, MemoryKind,
    device::PARAM_SLOT,
    kernel::{Kernel, Kernels},
};
use crate::{
    Error, Result,
    shader::{PARAMS, Variant},
};
use std::sync::{Arc, Mutex};

/// One binding of a dispatch: a buffer or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    buf: &'a Buf,
    offset: u64,
    size: u64,
}

impl<'a> From<&'a Buf> for Bind<'a> {
    fn from(buf: &'a Buf) -> Self {
        Self { buf, offset: 0, size: buf.size() }
    }
}

impl<'a> Bind<'a> {
    /// The first `bytes` of a buffer: no others are zeroed before their first use.
    pub fn first(buf: &'a Buf, bytes: u64) -> Self {
        Self { buf, offset: 0, size: bytes.min(buf.size()) }
    }
}

/// Workgroups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// `n` workgroups in all, folded over two dimensions where one does not hold them. Shaders
    /// take their number from `flat_workgroup` (`shared/grid.wgsl`) and skip those past `n`.
    Flat(u64),
    /// The same, each of which goes through so many tokens of history: what it takes grows with
    /// them, which [`super::Pace`] wants to know.
    Long(u64, u32),
    /// Exactly these; each must be within the limit of one dimension.
    Dims([u32; 3]),
}

impl Grid {
    fn dims(self, max: u32) -> Option<[u32; 3]> {
        match self {
            Self::Dims(d) => (d.iter().all(|n| (1..=max).contains(n))).then_some(d),
            Self::Flat(n) | Self::Long(n, _) => {
                let x = n.min(u64::from(max)).max(1);
                let y = n.div_ceil(x).max(1);
                (n > 0 && y <= u64::from(max)).then_some([x as u32, y as u32, 1])
            }
        }
    }
}

#[derive(Debug)]
pub(super) enum Command {
    Dispatch(Dispatch),
    Copy { from: Buf, from_offset: u64, to: Buf, to_offset: u64, bytes: u64 },
}

#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) op: &'static str,
    pub(super) kernel: Arc<Kernel>,
    pub(super) bind_group: wgpu::BindGroup,
    pub(super) grid: [u32; 3],
    /// What each workgroup goes through: tokens of history, or 1.
    pub(super) units: u32,
    /// Kind and bytes of each binding.
    bound: Vec<(MemoryKind, u64)>,
}

/// A finished list of commands, ready to be submitted any number of times.
#[derive(Debug)]
pub struct Recording {
    pub(super) commands: Vec<Command>,
    /// The dispatches' parameters, which their bind groups point into.
    _params: Buf,
    /// The commands as encoded for the next submission.
    pub(super) ahead: Mutex<Option<wgpu::CommandBuffer>>,
}

impl Recording {
    /// Number of dispatches.
    pub fn dispatches(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Dispatch(_))).count()
    }

    /// What its dispatches bind: op, kind and bytes of every binding.
    pub fn bound(&self) -> impl Iterator<Item = (&'static str, MemoryKind, u64)> {
        let dispatches = self.commands.iter().filter_map(|c| match c {
            Command::Dispatch(d) => Some(d),
            Command::Copy { .. } => None,
        });
        dispatches.flat_map(|d| d.bound.iter().map(|(kind, bytes)| (d.op, *kind, *bytes)))
    }
}

/// Collects the commands of one recording.
#[derive(Debug)]
pub struct Recorder {
    gpu: Gpu,
    wanted: Vec<Wanted>,
    params: Vec<u8>,
}

/// A command whose kernel may not be compiled yet.
#[derive(Debug)]
enum Wanted {
    Dispatch(Unbound),
    Copy(Command),
}

#[derive(Debug)]
struct Unbound {
    op: &'static str,
    variant: Variant,
    /// Buffer, offset and bytes of each.
    bindings: Vec<(Buf, u64, u64)>,
    /// Where its parameters are in those of the recording.
    params: u64,
    grid: [u32; 3],
    units: u32,
}

impl Recorder {
    /// An empty list for `gpu`.
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), wanted: Vec::new(), params: Vec::new() }
    }

    /// The device this list is for.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Adds a dispatch of `variant`. `bindings` are its storage buffers in order; `params` is the
    /// kernel's uniform `p` (same layout, at most 256 bytes); `op` names it in profiles.
    ///
    /// # Errors
    /// Too many workgroups.
    pub fn dispatch<P: bytemuck::NoUninit>(
        &mut self,
        op: &'static str,
        variant: &Variant,
        bindings: &[Bind<'_>],
        params: &P,
        grid: Grid,
    ) -> Result<()> {
        let max = self.gpu.caps().max_workgroups;
        let dims = grid.dims(max).ok_or_else(|| {
            Error::Shader(format!("{op}: {grid:?} does not fit {max} workgroups a dimension"))
        })?;
        let offset = self.params.len();
        self.params.extend_from_slice(bytemuck::bytes_of(params));
        self.params.resize(offset + PARAM_SLOT as usize, 0);
        self.wanted.push(Wanted::Dispatch(Unbound {
            op,
            variant: variant.clone(),
            bindings: bindings.iter().map(|b| (b.buf.clone(), b.offset, b.size)).collect(),
            params: offset as u64,
            grid: dims,
            units: match grid {
                Grid::Long(_, tokens) => tokens,
                Grid::Flat(_) | Grid::Dims(_) => 1,
            },
        }));
        Ok(())
    }

    /// Adds a copy of `bytes` (a multiple of 4) between different buffers.
    pub fn copy(&mut self, from: &Buf, from_offset: u64, to: &Buf, to_offset: u64, bytes: u64) {
        let (from, to) = (from.clone(), to.clone());
        let copy = Command::Copy { from, from_offset, to, to_offset, bytes };
        self.wanted.push(Wanted::Copy(copy));
    }

    /// The kernels of its dispatches.
    pub(crate) fn variants(&self) -> impl Iterator<Item = &Variant> {
        self.wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Dispatch(unbound) => Some(&unbound.variant),
            Wanted::Copy(_) => None,
        })
    }

    /// Closes the list.
    ///
    /// # Errors
    /// [`Error::Shader`] for a variant that cannot run here or a wrong number of bindings,
    /// [`Error::Device`] when the device has failed or memory is short.
    pub fn finish(mut self) -> Result<Recording> {
        if self.params.is_empty() {
            self.params.resize(PARAM_SLOT as usize, 0);
        }
        let kernels = self.gpu.kernels(self.variants())?;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let size = self.params.len() as u64;
        let params = self.gpu.create("params", size, usage, MemoryKind::Staging)?;
        self.gpu.upload(&params, 0, &self.params)?;
        let bind = |wanted| match wanted {
            Wanted::Dispatch(unbound) => unbound.bind(&self.gpu, &kernels, &params),
            Wanted::Copy(copy) => Ok(copy),
        };
        let commands = self.wanted.into_iter().map(bind).collect::<Result<_>>()?;
        drop(kernels);
        self.gpu.check()?;
        Ok(Recording { commands, _params: params, ahead: Mutex::default() })
    }
}

impl Unbound {
    fn bind(self, gpu: &Gpu, kernels: &Kernels, params: &Buf) -> Result<Command> {
        let Self { op, variant, bindings, params: offset, grid, units } = self;
        let kernel = kernels[&variant].clone();
        if kernel.bindings.len() != bindings.len() {
            return Err(Error::Shader(format!(
                "{variant} has {} bindings, {op} gives {}",
                kernel.bindings.len(),
                bindings.len()
            )));
        }
        let params = (PARAMS, (params, offset, PARAM_SLOT));
        let ranges = bindings.iter().map(|(buf, offset, size)| (buf, *offset, *size));
        let entries = (kernel.bindings.iter().copied().zip(ranges))
            .chain([params])
            .map(entry)
            .collect::<Result<Vec<_>>>()?;
        let inner = gpu.inner();
        let bind_group = inner.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(op),
            layout: &kernel.interface.group,
            entries: &entries,
        });
        inner.count_bind_group();
        let bound = bindings.iter().map(|(buf, _, size)| (buf.kind(), *size)).collect();
        Ok(Command::Dispatch(Dispatch { op, kernel, bind_group, grid, units, bound }))
    }
}

/// A binding's number, and what it is bound to: buffer, offset and bytes.
fn entry<'a>(
    (binding, (buf, offset, size)): (u32, (&'a Buf, u64, u64)),
) -> Result<wgpu::BindGroupEntry<'a>> {
    let (buffer, size) = (buf.raw()?, std::num::NonZeroU64::new(size));
    let range = wgpu::BufferBinding { buffer, offset, size };
    Ok(wgpu::BindGroupEntry { binding, resource: wgpu::BindingResource::Buffer(range) })
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn flat_grids_fold_past_the_limit() {
        assert_eq!(Grid::Flat(65534).dims(65535), Some([65534, 1, 1]));
        assert_eq!(Grid::Flat(65535).dims(65535), Some([65535, 1, 1]));
        assert_eq!(Grid::Flat(65536).dims(65535), Some([65535, 2, 1]));
        assert_eq!(Grid::Flat(8).dims(3), Some([3, 3, 1]));
        assert_eq!(Grid::Flat(10).dims(3), None);
        assert_eq!(Grid::Flat(0).dims(3), None);
        assert_eq!(Grid::Dims([4, 1, 1]).dims(3), None);
    }
}
