//! Buffers and the account of what they hold: every byte belongs to a heap and a kind.

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
    raw: wgpu::Buffer,
    heap: Heap,
    kind: MemoryKind,
    account: Arc<Account>,
}

impl Buf {
    pub(super) fn new(
        raw: wgpu::Buffer,
        heap: Heap,
        kind: MemoryKind,
        account: Arc<Account>,
    ) -> Self {
        account.entry(heap, kind).fetch_add(raw.size(), Ordering::Relaxed);
        Self(Arc::new(Inner { raw, heap, kind, account }))
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.raw.size()
    }

    /// The memory it lies in.
    pub fn heap(&self) -> Heap {
        self.0.heap
    }

    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.0.raw
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let entry = self.account.entry(self.heap, self.kind);
        entry.fetch_sub(self.raw.size(), Ordering::Relaxed);
    }
}
