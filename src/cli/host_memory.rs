//! Memory that this process itself holds, as the system counts it.

use std::fs;

use serde::Serialize;

/// Bytes of this process in the system's memory. Where device and host share memory, buffers of
/// the device may be counted here as well.
#[derive(Serialize)]
pub(super) struct HostMemory {
    /// Resident now.
    resident: u64,
    /// Most that was ever resident.
    peak: u64,
    /// Pages of files among those resident now.
    files: u64,
}

impl HostMemory {
    /// What the system says; nothing where it has no `/proc`.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib: u64 = value?.trim().strip_suffix(" kB")?.parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Self { resident: field("VmRSS")?, peak: field("VmHWM")?, files: field("RssFile")? })
    }
}

#[cfg(test)]
mod tests {
    use super::HostMemory;

    #[test]
    fn fields_are_found_by_name_and_unit() {
        let status = "Name:\tVmRSS: 1 kB\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\nRssFile:\t 3 kB\n";
        let found = HostMemory::parse(status).unwrap();
        assert_eq!((found.resident, found.peak, found.files), (10 << 10, 20 << 10, 3 << 10));
        assert!(HostMemory::parse("VmRSS: 1 kB").is_none());
        assert!(HostMemory::parse("").is_none());
    }
}
