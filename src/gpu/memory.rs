//! Where buffers come from. What is allocated through [`Memory`] can be planned: the same code
//! runs over a [`Ledger`], which only counts.

use super::{
    Buf, Caps, Gpu, Heap, MemoryKind, MemoryReport,
    buffer::{Account, size_of},
};
use crate::{Error, Result};
use std::sync::Arc;

/// A device's memory and the host memory that it reads in place, or an account of both.
pub trait Memory {
    /// Limits that sizes follow from.
    fn caps(&self) -> &Caps;

    /// Bytes allocated now, by heap and kind.
    fn memory(&self) -> MemoryReport;

    /// A buffer as of [`Gpu::alloc_in`].
    ///
    /// # Errors
    /// As there.
    fn alloc_in(&self, heap: Heap, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf>;

    /// [`Self::alloc_in`] device memory.
    ///
    /// # Errors
    /// As there.
    fn alloc(&self, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf> {
        self.alloc_in(Heap::Device, label, bytes, kind)
    }
}

impl Memory for Gpu {
    fn caps(&self) -> &Caps {
        Gpu::caps(self)
    }

    fn memory(&self) -> MemoryReport {
        Gpu::memory(self)
    }

    fn alloc_in(&self, heap: Heap, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf> {
        Gpu::alloc_in(self, heap, label, bytes, kind)
    }
}

/// An account of buffers that are not there: it has room for all, and nothing can be done with
/// them.
#[derive(Debug)]
pub struct Ledger {
    caps: Caps,
    account: Arc<Account>,
}

impl Ledger {
    /// Nothing allocated; a device of `caps` is planned for.
    pub fn new(caps: Caps) -> Self {
        Self { caps, account: Arc::default() }
    }
}

impl Memory for Ledger {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn memory(&self) -> MemoryReport {
        self.account.report()
    }

    fn alloc_in(&self, heap: Heap, label: &str, bytes: u64, kind: MemoryKind) -> Result<Buf> {
        if heap == Heap::Host && !self.caps.host_buffers {
            return Err(Error::Device(format!("{label} cannot be in host memory")));
        }
        let size = size_of(label, bytes, &self.caps)?;
        Ok(Buf::new(None, size, heap, kind, self.account.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::each_device;

    #[test]
    fn a_ledger_counts_as_a_device_does() {
        each_device(|t| {
            let ledger = Ledger::new(t.gpu.caps().clone());
            let before = t.gpu.memory().device;
            for (bytes, kind) in
                [(0, MemoryKind::Kv), (17, MemoryKind::Kv), (64, MemoryKind::State)]
            {
                let there = t.gpu.alloc("x", bytes, kind).unwrap();
                let planned = ledger.alloc("x", bytes, kind).unwrap();
                assert_eq!(there.size(), planned.size());
                let (now, plan) = (t.gpu.memory().device, ledger.memory().device);
                assert_eq!((now.kv - before.kv, now.state - before.state), (plan.kv, plan.state));
            }
            assert_eq!(ledger.memory().device.total, 0);
            let most = t.gpu.caps().max_binding;
            let [real, planned] = [&t.gpu as &dyn Memory, &ledger]
                .map(|m| m.alloc("logits", most + 1, MemoryKind::Scratch).unwrap_err().to_string());
            assert_eq!(real, planned);
        });
    }

    #[test]
    fn planned_buffers_are_refused() {
        each_device(|t| {
            let planned = Ledger::new(t.gpu.caps().clone()).alloc("x", 64, MemoryKind::Kv).unwrap();
            let text = t.gpu.upload(&planned, 0, &[0; 4]).unwrap_err().to_string();
            assert!(text.contains("only planned"), "{text}");
        });
    }
}
