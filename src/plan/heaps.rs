//! How much memory there is.

use crate::{Error, Result, gpu::AdapterMemory};
use std::fs;

/// A heap to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapSize {
    /// Bytes that can be used, what others use already taken off.
    pub size: u64,
    /// Bytes to leave free of them.
    pub reserve: u64,
    /// Where the size is from.
    pub source: String,
}

impl HeapSize {
    /// A device's memory of `size` bytes, with the reserve of spec/kv-offload.md 7.
    pub fn device(size: u64, source: &str) -> Self {
        Self { size, reserve: (512 << 20).max(size / 100 * 3), source: source.into() }
    }

    /// Host memory of `size` bytes, likewise.
    pub fn host(size: u64, source: &str) -> Self {
        Self { size, reserve: (2 << 30).max(size / 20), source: source.into() }
    }

    /// The same with `reserve` bytes to leave free, if that is said.
    #[must_use]
    pub fn keeping(self, reserve: Option<u64>) -> Self {
        Self { reserve: reserve.unwrap_or(self.reserve), ..self }
    }

    /// What can be planned with.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.reserve)
    }
}

/// What a user says of memory, in bytes; the rest is found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of the device, to use at most.
    pub device: Option<u64>,
    /// Of the host, for the device to use in place, likewise.
    pub host: Option<u64>,
    /// To leave free of the device's.
    pub reserve: Option<u64>,
}

/// The two heaps of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heaps {
    /// The device's.
    pub device: HeapSize,
    /// The host's.
    pub host: HeapSize,
    /// Where both are one memory: bytes of it that can be planned with.
    pub shared: Option<u64>,
    /// What to know of the figures.
    pub note: Option<String>,
}

impl Heaps {
    /// The heaps of a machine with memories of its own for device and host.
    pub fn apart(device: HeapSize, host: HeapSize) -> Self {
        Self { device, host, shared: None, note: None }
    }

    /// The heaps of this machine, sizes that are given apart.
    ///
    /// # Errors
    /// [`Error::Device`] when neither a size is given nor the adapter's is known.
    pub fn of(adapter: &AdapterMemory, limits: MemoryLimits) -> Result<Self> {
        let MemoryLimits { device, host, reserve } = limits;
        let system = host_memory();
        let host = match (host, &system) {
            (Some(given), _) => HeapSize::host(given, "given"),
            (None, Some((free, source))) => HeapSize::host(*free, source),
            (None, None) => {
                return Err(Error::Device(
                    "this system does not say how much memory is free: give --host-memory".into(),
                ));
            }
        };
        if let Some(given) = device {
            return Ok(Self::apart(HeapSize::device(given, "given").keeping(reserve), host));
        }
        let is_shared = adapter.report.kind.shares_memory();
        let (bytes, source) = match adapter.device_bytes() {
            // Little or nothing of its own: the system's memory is the device's.
            found if is_shared && found.is_none_or(|(bytes, _)| bytes < SMALL) => {
                (host.size, format!("{}, which is the device's too", host.source))
            }
            Some((bytes, source)) => (bytes, source.to_owned()),
            None => {
                return Err(Error::Device(format!(
                    "{} does not say how much memory it has: give --device-memory",
                    adapter.report.name
                )));
            }
        };
        let mut heaps = Self::apart(HeapSize::device(bytes, &source).keeping(reserve), host);
        if is_shared {
            // Drivers may not know what a carve-out takes or what others use.
            let all = heaps.host.free().saturating_add(adapter.carve_out);
            heaps.shared = Some(all);
            heaps.note = Some(format!(
                "device and host share one memory, of which {} MiB are relied on ({})",
                super::mib(all),
                heaps.host.source
            ));
        }
        Ok(heaps)
    }

    /// Whether so many bytes fit.
    pub(super) fn fit(&self, device: u64, host: u64) -> bool {
        device <= self.device.free()
            && (host == 0 || host <= self.host.free())
            && self.shared.is_none_or(|all| device + host <= all)
    }
}

/// Less than this is no device memory to speak of.
const SMALL: u64 = 1 << 30;

/// Bytes that this process can still take, and who says so: the system, or the group that the
/// process is confined to.
fn host_memory() -> Option<(u64, &'static str)> {
    let system = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let number = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let parse = |text: String| text.trim().parse::<u64>().ok();
    let v2 = number("memory.max").and_then(parse).zip(number("memory.current").and_then(parse));
    let v1 = || {
        let limit = number("memory/memory.limit_in_bytes").and_then(parse);
        limit.zip(number("memory/memory.usage_in_bytes").and_then(parse))
    };
    let group = v2.or_else(v1).map(|(limit, used)| limit.saturating_sub(used));
    Some(match group {
        Some(group) if group < system => (group, "the limit of this control group"),
        _ => (system, "MemAvailable"),
    })
}

/// The field of `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterKind, AdapterReport, Caps, MemoryHeap};

    #[test]
    fn reserves_are_the_larger_of_two() {
        let gib = |n: u64| n << 30;
        assert_eq!(HeapSize::device(gib(8), "").reserve, 512 << 20);
        assert_eq!(HeapSize::device(gib(100), "").reserve, gib(100) / 100 * 3);
        assert_eq!(HeapSize::host(gib(16), "").reserve, gib(2));
        assert_eq!(HeapSize::host(gib(128), "").free(), gib(128) - gib(128) / 20);
        assert_eq!(HeapSize::host(gib(1), "").free(), 0);
    }

    #[test]
    fn one_memory_is_counted_once() {
        let gib = |n: u64| n << 30;
        let mut heaps = Heaps::apart(HeapSize::device(gib(20), ""), HeapSize::host(gib(20), ""));
        assert!(heaps.fit(gib(18), gib(18)) && !heaps.fit(gib(20), 0));
        heaps.shared = Some(gib(18));
        assert!(heaps.fit(gib(9), gib(9)) && !heaps.fit(gib(10), gib(9)));
    }

    /// What drivers say of devices whose memory is the system's is no measure of it.
    #[test]
    fn without_memory_of_its_own_a_device_has_the_systems() {
        let gib = |n: u64| n << 30;
        let heap = |size| MemoryHeap { size, budget: None, device_local: true };
        let of = |kind, heaps: &[MemoryHeap], carve_out| {
            let adapter = AdapterMemory {
                report: AdapterReport { kind, ..AdapterReport::nameless() },
                caps: Caps::usual(),
                heaps: heaps.to_vec(),
                carve_out,
            };
            let limits = MemoryLimits { host: Some(gib(32)), ..MemoryLimits::default() };
            Heaps::of(&adapter, limits)
        };
        for heaps in [&[][..], &[heap(0)], &[heap(256 << 20)]] {
            let found = of(AdapterKind::Integrated, heaps, gib(4)).unwrap();
            assert_eq!(found.device.size, gib(32));
            assert!(found.device.source.contains("which is the device's too"), "{found:?}");
            assert_eq!(found.shared, Some(found.host.free() + gib(4)));
            assert!(found.note.unwrap().contains("one memory"));
        }
        let split = of(AdapterKind::Integrated, &[heap(gib(20))], 0).unwrap();
        assert_eq!((split.device.size, split.shared), (gib(20), Some(split.host.free())));
        // A card has what its driver says, and nothing if it says nothing.
        let card = of(AdapterKind::Discrete, &[heap(gib(24)), heap(256 << 20)], 0).unwrap();
        assert_eq!((card.device.size, card.shared), (gib(24), None));
        let silent = of(AdapterKind::Discrete, &[], 0).unwrap_err().to_string();
        assert!(silent.contains("--device-memory"), "{silent}");
    }

    #[test]
    fn what_the_system_says() {
        let text = "MemTotal:       32 kB\nMemAvailable:   1234 kB\n";
        assert_eq!(available(text), Some(1234 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }
}
