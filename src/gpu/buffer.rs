//! Buffers and the account of what they hold: every byte on the device belongs to a kind.

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
    /// Recurrent and convolution state of sequences.
    State,
    /// Activations, reused by every step.
    Scratch,
    /// Parameters of recordings, read-back and upload buffers.
    Staging,
}

const KINDS: usize = 5;

/// Bytes allocated on the device, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Model tensors.
    pub weights: u64,
    /// Keys and values of attention layers.
    pub kv: u64,
    /// Recurrent and convolution state.
    pub state: u64,
    /// Activations.
    pub scratch: u64,
    /// Recordings' parameters, read-back and upload buffers.
    pub staging: u64,
    /// Sum of the above.
    pub total: u64,
}

#[derive(Debug, Default)]
pub(super) struct Account([AtomicU64; KINDS]);

impl Account {
    pub(super) fn report(&self) -> MemoryReport {
        let [weights, kv, state, scratch, staging] =
            std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        let total = weights + kv + state + scratch + staging;
        MemoryReport { weights, kv, state, scratch, staging, total }
    }
}

/// A device buffer. Clones share it; the memory is given back with the last one.
#[derive(Clone, Debug)]
pub struct Buf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: wgpu::Buffer,
    kind: MemoryKind,
    account: Arc<Account>,
}

impl Buf {
    pub(super) fn new(raw: wgpu::Buffer, kind: MemoryKind, account: Arc<Account>) -> Self {
        account.0[kind as usize].fetch_add(raw.size(), Ordering::Relaxed);
        Self(Arc::new(Inner { raw, kind, account }))
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.raw.size()
    }

    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.0.raw
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.account.0[self.kind as usize].fetch_sub(self.raw.size(), Ordering::Relaxed);
    }
}
