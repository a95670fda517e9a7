//! The opened device: allocation, uploads, error state, counters.

use super::{
    AdapterMemory, AdapterReport, Buf, Caps, Heap, MemoryKind, MemoryReport, Restrictions, adapter,
    buffer::{Account, size_of},
    kernel::{Interfaces, Kernels},
    pipeline_cache::PipelineCache,
};
use crate::{Error, Result};
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Index or name (`--device`); none: the best type.
    pub select: Option<String>,
    /// Limits and features taken away.
    pub restrict: Restrictions,
    /// Fill every new buffer with NaN, so that a read of stale memory shows.
    pub poison: bool,
    /// Keep the driver-independent bounds checks in shaders.
    pub checked_shaders: bool,
    /// Directory where compiled pipelines are kept for the next start; none: nowhere.
    pub cache: Option<PathBuf>,
}

/// How many objects were created so far. Decoding must not move them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Compute pipelines.
    pub pipelines: u64,
    /// Buffers.
    pub buffers: u64,
    /// Bind groups.
    pub bind_groups: u64,
}

/// The opened device and its queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    memory: AdapterMemory,
    reason: String,
    poison: bool,
    most_memory: Option<u64>,
    pub(super) checked_shaders: bool,
    account: Arc<Account>,
    /// The first error the device reported outside any scope; later calls return it.
    failure: Arc<Mutex<Option<String>>>,
    pub(super) kernels: Mutex<Kernels>,
    pub(super) interfaces: Mutex<Interfaces>,
    pub(super) pipeline_cache: PipelineCache,
    pipelines: AtomicU64,
    buffers: AtomicU64,
    bind_groups: AtomicU64,
    /// Bytes written by uploads since the last wait for them.
    staged: AtomicU64,
    /// Nanoseconds spent encoding recordings.
    encoding: AtomicU64,
    /// Nanoseconds spent waiting for the device.
    waiting: AtomicU64,
}

/// Bytes of one kernel's parameters: the largest struct, and the alignment of its place.
pub(super) const PARAM_SLOT: u64 = 256;

/// Sizes of the blocks that small buffers share. What is free in them no plan counts, so they are
/// small, and weights mostly have memory of their own.
const BLOCK: std::ops::Range<u64> = 4 << 20..16 << 20;

/// Uploads are staged until the queue has passed them: so many bytes, then a wait.
const UPLOAD_PART: usize = 8 << 20;

impl Gpu {
    /// Opens the adapter that `options` select.
    ///
    /// # Errors
    /// [`Error::Device`] when there is none, the selection is wrong, or it cannot be opened.
    pub fn open(options: &DeviceOptions) -> Result<Self> {
        let all = adapter::enumerate();
        let reports: Vec<_> = all.iter().enumerate().map(|(i, a)| adapter::report(i, a)).collect();
        let (index, reason) = super::choose(&reports, options.select.as_deref())?;
        let (adapter, mut report) = (&all[index], reports[index].clone());
        report.kind = options.restrict.kind.unwrap_or(report.kind);
        let features = options.restrict.features(adapter.features());
        let limits = options.restrict.limits(adapter.limits());
        let caps = options.restrict.caps(adapter, features, &limits);
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("engine"),
            required_features: features,
            required_limits: limits,
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: BLOCK,
            },
            // SAFETY: cooperative matrices are the one experimental feature asked for; kernels that
            // use them keep every access within arrays, and tests compare them with those that do
            // not.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..Default::default()
        });
        let (device, queue) = pollster::block_on(request)
            .map_err(|e| Error::Device(format!("{} cannot be opened: {e}", report.name)))?;
        let pipeline_cache =
            PipelineCache::open(&device, &adapter.get_info(), options.cache.as_deref());
        let failure = Arc::new(Mutex::new(None));
        let slot = failure.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| note(&slot, e.to_string())));
        let slot = failure.clone();
        device.set_device_lost_callback(move |why, text| {
            if why != wgpu::DeviceLostReason::Destroyed {
                note(&slot, format!("device lost: {text}"));
            }
        });
        Ok(Self(Arc::new(Inner {
            device,
            queue,
            memory: AdapterMemory::of(adapter, report, caps),
            reason,
            poison: options.poison,
            most_memory: options.restrict.memory,
            checked_shaders: options.checked_shaders,
            account: Arc::default(),
            failure,
            kernels: Mutex::default(),
            interfaces: Mutex::default(),
            pipeline_cache,
            pipelines: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            bind_groups: AtomicU64::new(0),
            staged: AtomicU64::new(0),
            encoding: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        })))
    }

    /// Capabilities and limits.
    pub fn caps(&self) -> &Caps {
        &self.0.memory.caps
    }

    /// The adapter this device was opened on.
    pub fn adapter(&self) -> &AdapterReport {
        &self.0.memory.report
    }

    /// What that adapter had of memory when this device was opened.
    pub fn adapter_memory(&self) -> &AdapterMemory {
        &self.0.memory
    }

    /// Why that adapter was chosen.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Bytes allocated now, by heap and kind.
    pub fn memory(&self) -> MemoryReport {
        self.0.account.report()
    }

    /// Objects created since the device was opened.
    pub fn counters(&self) -> Counters {
        Counters {
            pipelines: self.0.pipelines.load(Ordering::Relaxed),
            buffers: self.0.buffers.load(Ordering::Relaxed),
            bind_groups: self.0.bind_groups.load(Ordering::Relaxed),
        }
    }

    /// Host time spent so far on encoding the recordings submitted.
    pub fn encoding(&self) -> Duration {
        Duration::from_nanos(self.0.encoding.load(Ordering::Relaxed))
    }

    /// Host time spent so far on waiting for the device, wherever that was.
    pub fn waiting(&self) -> Duration {
        Duration::from_nanos(self.0.waiting.load(Ordering::Relaxed))
    }

    /// [`Self::alloc_in`] device memory.
    ///
    /// # Errors
    /// As there.
    pub fn alloc(&self, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf> {
        self.alloc_in(Heap::Device, label, bytes, kind)
    }

    /// A storage buffer of at least `bytes` (rounded up to 16), bindable as a whole. Its content
    /// is unspecified: users write before they read, or call [`Gpu::zero`].
    ///
    /// # Errors
    /// [`Error::Device`] when it exceeds the binding limit, memory is short or the device reads
    /// no host memory in place; `label` is named.
    pub fn alloc_in(&self, heap: Heap, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf> {
        let size = size_of(label, bytes, self.caps())?;
        let mut usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        if heap == Heap::Host {
            if !self.caps().host_buffers {
                return Err(Error::Device(format!(
                    "{label} cannot be in host memory: {} does not read it in place",
                    self.adapter().name
                )));
            }
            // Of the mapped kinds this one is system memory; with MAP_WRITE drivers that can map
            // device memory prefer that (spec/kv-offload.md 9.1).
            usage |= wgpu::BufferUsages::MAP_READ;
        }
        let buf = self.create_in(heap, label, size, usage, kind)?;
        if self.0.poison {
            let part = vec![0xff_u8; UPLOAD_PART.min(size as usize)];
            for offset in (0..size).step_by(UPLOAD_PART) {
                let n = part.len().min((size - offset) as usize);
                self.upload(&buf, offset, &part[..n])?;
            }
        }
        Ok(buf)
    }

    pub(super) fn create(
        &self,
        label: &str,
        size: u64,
        usage: wgpu::BufferUsages,
        kind: MemoryKind,
    ) -> Result<Buf> {
        self.create_in(Heap::Device, label, size, usage, kind)
    }

    fn create_in(
        &self,
        heap: Heap,
        label: &str,
        size: u64,
        usage: wgpu::BufferUsages,
        kind: MemoryKind,
    ) -> Result<Buf> {
        let out_of_memory = self.0.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.0.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        let is_short = pollster::block_on(out_of_memory.pop()).is_some();
        let MemoryReport { device, host } = self.memory();
        let is_over = |most| heap == Heap::Device && device.total + size > most;
        if is_short || self.0.most_memory.is_some_and(is_over) {
            return Err(Error::Memory(format!(
                "{label} cannot have {size} bytes; {} are in use on the device and {} on the host",
                device.total, host.total
            )));
        }
        self.check()?;
        self.0.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(Buf::new(Some(raw), size, heap, kind, self.0.account.clone()))
    }

    /// Writes `data` (a multiple of 4 bytes) at `offset`, before anything submitted later. Waits
    /// for the queue now and then, so that staging stays small.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn upload(&self, buf: &Buf, offset: u64, data: &[u8]) -> Result<()> {
        let raw = buf.raw()?;
        for (i, part) in data.chunks(UPLOAD_PART).enumerate() {
            self.0.queue.write_buffer(raw, offset + (i * UPLOAD_PART) as u64, part);
            let staged = self.0.staged.fetch_add(part.len() as u64, Ordering::Relaxed);
            if staged + part.len() as u64 >= UPLOAD_PART as u64 {
                self.0.staged.store(0, Ordering::Relaxed);
                self.0.queue.submit([]);
                self.wait(None)?;
            }
        }
        self.check()
    }

    /// Fills `buf` with zeros, before anything submitted later; nothing if it is only planned.
    pub fn zero(&self, buf: &Buf) {
        let Ok(raw) = buf.raw() else { return };
        let mut encoder = self.0.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(raw, 0, None);
        self.0.queue.submit([encoder.finish()]);
    }

    /// Copies all of `from` to `to` (same size), before anything submitted later; nothing if one is
    /// only planned.
    pub fn copy(&self, from: &Buf, to: &Buf) {
        let (Ok(source), Ok(target)) = (from.raw(), to.raw()) else { return };
        let mut encoder = self.0.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(source, 0, target, 0, from.size());
        self.0.queue.submit([encoder.finish()]);
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn finish(&self) -> Result<()> {
        self.wait(None)
    }

    /// Waits for a submission, or for all.
    pub(super) fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let wait = wgpu::PollType::Wait { submission_index: submission, timeout: None };
        let start = Instant::now();
        let polled = self.0.device.poll(wait);
        self.0.waiting.fetch_add(nanos(start.elapsed()), Ordering::Relaxed);
        polled.map_err(|e| Error::Device(format!("waiting failed: {e}")))?;
        self.check()
    }

    /// The first failure the device has reported, if any.
    pub(super) fn check(&self) -> Result<()> {
        match &*lock(&self.0.failure) {
            Some(text) => Err(Error::Device(text.clone())),
            None => Ok(()),
        }
    }

    /// What takes the device away, as a driver's reset does.
    #[cfg(test)]
    pub(crate) fn destroyer(&self) -> impl Fn() + Send + use<> {
        let device = self.0.device.clone();
        move || device.destroy()
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// Counts a pipeline; how many there were before.
    pub(super) fn count_pipeline(&self) -> usize {
        self.pipelines.fetch_add(1, Ordering::Relaxed) as usize
    }

    pub(super) fn count_encoding(&self, time: Duration) {
        self.encoding.fetch_add(nanos(time), Ordering::Relaxed);
    }

    pub(super) fn count_bind_group(&self) {
        self.bind_groups.fetch_add(1, Ordering::Relaxed);
    }
}

/// Locks even after a panic elsewhere: the guarded values are whole at every moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn note(slot: &Mutex<Option<String>>, text: String) {
    lock(slot).get_or_insert(text);
}
