//! Buffers and the account of what they hold: every byte belongs to a heap and a kind.

use super::Caps;
use crate::{Error, Result};
use serde::Serialize;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Model tensors.
    Weights,
    /// Keys and values of attention layers.
    Kv,
    /// Index keys of single tokens.
    IndexRaw,
    /// Index keys of blocks of tokens.
    IndexPooled,
    /// Recurrent and convolution state of sequences.
    State,
    /// Activations, reused by every step.
    Scratch,
    /// Parameters of recordings, read-back and upload buffers.
    Staging,
}

const KINDS: usize = 7;

/// Which memory a buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heap {
    /// The device's own, or what the driver takes for it.
    Device,
    /// The system's, which the device reads and writes in place.
    Host,
}

/// Bytes allocated in one heap, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Model tensors.
    pub weights: u64,
    /// Keys and values of attention layers.
    pub kv: u64,
    /// Index keys of single tokens.
    pub index_raw: u64,
    /// Index keys of blocks of tokens.
    pub index_pooled: u64,
    /// Recurrent and convolution state.
    pub state: u64,
    /// Activations.
    pub scratch: u64,
    /// Recordings' parameters, read-back and upload buffers.
    pub staging: u64,
    /// Sum of the above.
    pub total: u64,
}

/// Bytes allocated, by heap and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// In [`Heap::Device`].
    pub device: Usage,
    /// In [`Heap::Host`]: only what the device reads in place.
    pub host: Usage,
}

#[derive(Debug, Default)]
pub(super) struct Account([[AtomicU64; KINDS]; 2]);

impl Account {
    fn entry(&self, heap: Heap, kind: MemoryKind) -> &AtomicU64 {
        &self.0[heap as usize][kind as usize]
    }

    pub(super) fn report(&self) -> MemoryReport {
        let usage = |heap: Heap| {
            let [weights, kv, index_raw, index_pooled, state, scratch, staging] =
                std::array::from_fn(|i| self.0[heap as usize][i].load(Ordering::Relaxed));
            let total = weights + kv + index_raw + index_pooled + state + scratch + staging;
            Usage { weights, kv, index_raw, index_pooled, state, scratch, staging, total }
        };
        MemoryReport { device: usage(Heap::Device), host: usage(Heap::Host) }
    }
}

/// A buffer that the device reads and writes. Clones share it; the memory is given back with the
/// last one.
#[derive(Clone, Debug)]
pub struct Buf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// None: only planned.
    raw: Option<wgpu::Buffer>,
    size: u64,
    heap: Heap,
    kind: MemoryKind,
    account: Arc<Account>,
}

impl Buf {
    pub(super) fn new(
        raw: Option<wgpu::Buffer>,
        size: u64,
        heap: Heap,
        kind: MemoryKind,
        account: Arc<Account>,
    ) -> Self {
        account.entry(heap, kind).fetch_add(size, Ordering::Relaxed);
        Self(Arc::new(Inner { raw, size, heap, kind, account }))
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// What it is for.
    pub(super) fn kind(&self) -> MemoryKind {
        self.0.kind
    }

    /// The memory it lies in.
    pub fn heap(&self) -> Heap {
        self.0.heap
    }

    /// The buffer itself.
    ///
    /// # Errors
    /// [`Error::Device`] when it is only planned.
    pub(super) fn raw(&self) -> Result<&wgpu::Buffer> {
        self.0.raw.as_ref().ok_or_else(|| Error::Device("a buffer is only planned".into()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let entry = self.account.entry(self.heap, self.kind);
        entry.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// Bytes of a storage buffer that holds `bytes` and can be bound as a whole.
///
/// # Errors
/// [`Error::Device`] naming `label` when it exceeds the binding limit.
pub(super) fn size_of(label: &str, bytes: u64, caps: &Caps) -> Result<u64> {
    let size = bytes.max(16).next_multiple_of(16);
    match size > caps.max_binding {
        true => Err(Error::Device(format!(
            "{label} needs {size} bytes in one binding, the limit is {}",
            caps.max_binding
        ))),
        false => Ok(size),
    }
}
