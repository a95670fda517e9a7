//! Which memory the next segment of the cache goes to.

use crate::{
    Error, Result,
    gpu::{Heap, MemoryReport},
};

/// What the user wants of it (`--kv-host`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvHost {
    /// The device's memory while there is room, then the host's.
    #[default]
    Auto,
    /// The host's memory.
    On,
    /// The device's memory or nothing.
    Off,
}

/// Where segments go, and how many bytes of keys, values and raw index keys each heap has room
/// for, all sequences together.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// What the user wants.
    pub wish: KvHost,
    /// Whether the device reads host memory in place.
    pub in_place: bool,
    /// Room on the device, bytes.
    pub device: u64,
    /// Room on the host, bytes.
    pub host: u64,
}

impl Placement {
    /// The heap for `bytes` more.
    ///
    /// # Errors
    /// [`Error::Memory`] when there is no room for them where they may go.
    pub fn heap(&self, memory: &MemoryReport, bytes: u64) -> Result<Heap> {
        let used = |heap: Heap| match heap {
            Heap::Device => memory.device.kv + memory.device.index_raw,
            Heap::Host => memory.host.kv + memory.host.index_raw,
        };
        let room = |heap: Heap| match heap {
            Heap::Device => self.device,
            Heap::Host => self.host,
        };
        let fits = |heap: &Heap| bytes <= room(*heap).saturating_sub(used(*heap));
        self.allowed().iter().copied().find(fits).ok_or_else(|| {
            let left = |heap| format!("{}", room(heap).saturating_sub(used(heap)));
            let left = match self.allowed() {
                [Heap::Device] => format!("{} are left on the device", left(Heap::Device)),
                [Heap::Host] => format!("{} are left on the host", left(Heap::Host)),
                _ => format!(
                    "{} are left on the device and {} on the host",
                    left(Heap::Device),
                    left(Heap::Host)
                ),
            };
            Error::Memory(format!("the context cannot grow by {bytes} bytes of cache: {left}"))
        })
    }

    /// Where to go when `heap` turns out to be full before its room is used up.
    pub fn instead_of(&self, heap: Heap) -> Option<Heap> {
        self.allowed().iter().copied().skip_while(|h| *h != heap).nth(1)
    }

    fn allowed(&self) -> &'static [Heap] {
        match self.wish {
            KvHost::Auto if self.in_place => &[Heap::Device, Heap::Host],
            KvHost::On => &[Heap::Host],
            KvHost::Auto | KvHost::Off => &[Heap::Device],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(wish: KvHost, in_place: bool) -> Placement {
        Placement { wish, in_place, device: 100, host: 50 }
    }

    fn used(device: u64, host: u64) -> MemoryReport {
        let mut memory = MemoryReport::default();
        (memory.device.kv, memory.device.index_raw) = (device / 2, device - device / 2);
        (memory.host.kv, memory.host.index_raw) = (host, 0);
        memory
    }

    #[test]
    fn the_device_first_then_the_host() {
        let auto = place(KvHost::Auto, true);
        assert_eq!(auto.heap(&used(0, 0), 100).unwrap(), Heap::Device);
        assert_eq!(auto.heap(&used(51, 0), 50).unwrap(), Heap::Host);
        assert_eq!(auto.instead_of(Heap::Device), Some(Heap::Host));
        assert_eq!(auto.instead_of(Heap::Host), None);
        let text = auto.heap(&used(90, 30), 21).unwrap_err().to_string();
        assert!(text.contains("21 bytes") && text.contains("10 are left on the device and 20"));
    }

    #[test]
    fn one_heap_where_the_user_or_the_device_says_so() {
        for (place, heap, room) in [
            (place(KvHost::On, true), Heap::Host, 50),
            (place(KvHost::Off, true), Heap::Device, 100),
            (place(KvHost::Auto, false), Heap::Device, 100),
        ] {
            assert_eq!(place.heap(&used(0, 0), room).unwrap(), heap);
            assert!(place.heap(&used(0, 0), room + 1).is_err());
            assert_eq!(place.instead_of(heap), None);
        }
    }
}
