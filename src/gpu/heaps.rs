//! How much memory an adapter has, before a device is opened on it.

use super::{AdapterReport, Caps, Restrictions, adapter};
use crate::Result;
use std::fs;

/// A heap as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHeap {
    /// Bytes.
    pub size: u64,
    /// Bytes that this process can use now, where the driver says so (`VK_EXT_memory_budget`).
    pub budget: Option<u64>,
    /// Whether it is the device's own.
    pub device_local: bool,
}

/// An adapter and its memory.
#[derive(Clone, Debug)]
pub struct AdapterMemory {
    /// What the adapter is.
    pub report: AdapterReport,
    /// What a device opened on it can do.
    pub caps: Caps,
    /// Its heaps; none where the graphics API does not tell.
    pub heaps: Vec<MemoryHeap>,
    /// Bytes of system memory that are set aside for the device and free.
    pub carve_out: u64,
}

impl AdapterMemory {
    /// Of the adapter that `select` names, or of the best.
    ///
    /// # Errors
    /// As [`super::choose`].
    pub fn find(select: Option<&str>) -> Result<Self> {
        let all = adapter::enumerate();
        let mut reports: Vec<_> =
            all.iter().enumerate().map(|(i, a)| adapter::report(i, a)).collect();
        let (index, _) = super::choose(&reports, select)?;
        let (adapter, free) = (&all[index], Restrictions::default());
        let (features, limits) = (adapter.features(), adapter.limits());
        let caps = free.caps(adapter, free.features(features), &free.limits(limits));
        Ok(Self::of(adapter, reports.swap_remove(index), caps))
    }

    /// Of `adapter`, on which a device of `caps` is opened.
    pub(super) fn of(adapter: &wgpu::Adapter, report: AdapterReport, caps: Caps) -> Self {
        let carve_out = carve_out(&adapter.get_info().device_pci_bus_id);
        Self { report, caps, heaps: heaps(adapter), carve_out }
    }

    /// Bytes of the largest heap of the device's own and where the figure is from.
    pub fn device_bytes(&self) -> Option<(u64, &'static str)> {
        let own = self.heaps.iter().filter(|heap| heap.device_local);
        let largest = own.max_by_key(|heap| heap.size)?;
        Some(match largest.budget {
            Some(budget) => (budget.min(largest.size), "the driver's budget"),
            None => (largest.size, "the driver's heap size"),
        })
    }
}

/// The heaps that Vulkan reports.
#[cfg(not(target_vendor = "apple"))]
fn heaps(adapter: &wgpu::Adapter) -> Vec<MemoryHeap> {
    use ash::{ext::memory_budget, vk};
    // SAFETY: the handle is only asked for properties, and while `adapter` lives.
    let Some(hal) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else {
        return Vec::new();
    };
    let instance = hal.shared_instance();
    if instance.instance_api_version() < vk::API_VERSION_1_1 {
        return Vec::new();
    }
    let has_budget = hal.physical_device_capabilities().supports_extension(memory_budget::NAME);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: the instance is of a version that has the function, the device is the instance's,
    // and the extension whose structure is chained is supported.
    unsafe {
        instance
            .raw_instance()
            .get_physical_device_memory_properties2(hal.raw_physical_device(), &mut properties);
    }
    let memory = properties.memory_properties;
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    let heap = |(heap, budget): (&vk::MemoryHeap, u64)| MemoryHeap {
        size: heap.size,
        budget: (budget > 0).then_some(budget),
        device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
    };
    heaps.zip(budget.heap_budget).map(heap).collect()
}

#[cfg(target_vendor = "apple")]
fn heaps(_: &wgpu::Adapter) -> Vec<MemoryHeap> {
    Vec::new()
}

/// What amdgpu says of the memory that the firmware has set aside for the device at `bus`.
fn carve_out(bus: &str) -> u64 {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/mem_info_vram_{name}"));
        text.ok()?.trim().parse::<u64>().ok()
    };
    let free = number("total").zip(number("used")).map(|(total, used)| total.saturating_sub(used));
    free.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_here_tells_its_heaps() {
        for report in super::super::adapters() {
            let found = AdapterMemory::find(Some(&report.index.to_string())).unwrap();
            assert!(found.heaps.iter().any(|heap| heap.device_local), "{found:?}");
            let (bytes, _) = found.device_bytes().unwrap();
            assert!(bytes > 64 << 20, "{found:?}");
            assert!(found.caps.max_binding >= 128 << 20);
        }
    }
}
