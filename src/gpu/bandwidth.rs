//! How fast the device reads a heap, by copies.

use super::{Gpu, Heap, MemoryKind};
use crate::Result;
use std::time::Instant;

/// Bytes of a copy: more than caches hold, within any device's binding.
const BYTES: u64 = 64 << 20;
/// Copies that are timed, after one that is not.
const COPIES: u32 = 4;

impl Gpu {
    /// Bytes a second that the device reads from `heap`; a copy within its own memory reads and
    /// writes. Takes some tens of milliseconds on a GPU.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short or `heap` cannot be read in place.
    pub fn bandwidth(&self, heap: Heap) -> Result<f64> {
        let bytes = BYTES.min(self.caps().max_binding);
        let from = self.alloc_in(heap, "bandwidth source", bytes, MemoryKind::Staging)?;
        let to = self.alloc("bandwidth target", bytes, MemoryKind::Staging)?;
        self.copy(&from, &to);
        self.finish()?;
        let start = Instant::now();
        (0..COPIES).for_each(|_| self.copy(&from, &to));
        self.finish()?;
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let moved = match heap {
            Heap::Device => 2 * bytes,
            Heap::Host => bytes,
        };
        Ok(moved as f64 * f64::from(COPIES) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::each_device;

    #[test]
    fn some_megabytes_a_second_and_nothing_left() {
        each_device(|t| {
            let before = t.gpu.memory();
            for heap in [Heap::Device, Heap::Host] {
                match t.gpu.bandwidth(heap) {
                    Ok(rate) => assert!((1e6..1e14).contains(&rate), "{heap:?}: {rate}"),
                    Err(e) => assert!(heap == Heap::Host && e.to_string().contains("host memory")),
                }
            }
            assert_eq!(t.gpu.memory(), before);
        });
    }
}
