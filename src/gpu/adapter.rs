//! Which adapter runs the model: by reported type, never by name patterns or memory size.

use super::int_dot::int_dot;
use crate::{Error, Result};
use serde::Serialize;

/// The adapter's type as its driver reports it, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the system's memory.
    Integrated,
    /// A GPU seen through a virtual machine.
    Virtual,
    /// The driver does not say.
    Other,
    /// A software rasteriser: never chosen while a GPU is there, unless asked for.
    Software,
}

impl AdapterKind {
    /// Whether the device's memory is the system's.
    pub fn shares_memory(self) -> bool {
        !matches!(self, Self::Discrete | Self::Virtual)
    }
}

/// What an adapter is and can do.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterReport {
    /// Index for `--device`.
    pub index: usize,
    /// Name as the driver reports it.
    pub name: String,
    /// Reported type.
    pub kind: AdapterKind,
    /// Graphics API, e.g. `vulkan`.
    pub backend: String,
    /// Driver name and version.
    pub driver: String,
    /// Smallest and largest subgroup size.
    pub subgroup_size: [u32; 2],
    /// Largest storage binding in bytes.
    pub max_binding: u64,
    /// Largest buffer in bytes.
    pub max_buffer: u64,
    /// Storage buffers one shader stage can bind.
    pub max_storage_buffers: u32,
    /// Invocations in one workgroup.
    pub max_invocations: u32,
    /// Workgroup memory in bytes.
    pub max_workgroup_memory: u32,
    /// Optional features that the engine would use.
    pub features: Vec<&'static str>,
}

#[cfg(test)]
impl AdapterReport {
    /// An adapter of WebGPU's limits, for lists of adapters that are not there.
    pub(crate) fn nameless() -> Self {
        Self {
            index: 0,
            name: String::new(),
            kind: AdapterKind::Other,
            backend: "vulkan".into(),
            driver: String::new(),
            subgroup_size: [32, 64],
            max_binding: 0,
            max_buffer: 0,
            max_storage_buffers: 8,
            max_invocations: 256,
            max_workgroup_memory: 16384,
            features: vec![],
        }
    }
}

/// Features the engine uses where an adapter has them, with the names it reports them by.
pub(super) const USED_FEATURES: [(wgpu::Features, &str); 7] = [
    (wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, "host-memory-in-place"),
    (wgpu::Features::SUBGROUP, "subgroup"),
    (wgpu::Features::SHADER_F16, "f16"),
    (wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative-matrix"),
    (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
    (wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES, "timestamps-inside-passes"),
    (wgpu::Features::PIPELINE_CACHE, "pipeline-cache"),
];

/// All adapters of this machine.
pub fn adapters() -> Vec<AdapterReport> {
    enumerate().iter().enumerate().map(|(i, a)| report(i, a)).collect()
}

pub(super) fn enumerate() -> Vec<wgpu::Adapter> {
    let mut instance = wgpu::InstanceDescriptor::new_without_display_handle();
    instance.backends = wgpu::Backends::PRIMARY;
    // Would add validation dispatches of its own around every indirect one.
    instance.flags.remove(wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL);
    // Drivers' validation layers are a matter of `VK_INSTANCE_LAYERS`, not of the build profile.
    instance.flags.remove(wgpu::InstanceFlags::VALIDATION | wgpu::InstanceFlags::DEBUG);
    // What would exceed this share of a heap's budget is an error to act on, where the driver
    // would swap or lose the device: as much stays free as plans leave of large heaps.
    instance.memory_budget_thresholds.for_resource_creation = Some(97);
    let instance = wgpu::Instance::new(instance);
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY))
}

pub(super) fn report(index: usize, adapter: &wgpu::Adapter) -> AdapterReport {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Other,
    };
    let features = adapter.features();
    AdapterReport {
        index,
        name: info.name,
        kind,
        backend: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        subgroup_size: [info.subgroup_min_size, info.subgroup_max_size],
        max_binding: limits.max_storage_buffer_binding_size,
        max_buffer: limits.max_buffer_size,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_invocations: limits.max_compute_invocations_per_workgroup,
        max_workgroup_memory: limits.max_compute_workgroup_storage_size,
        features: USED_FEATURES
            .iter()
            .filter(|(f, _)| features.contains(*f))
            .map(|(_, name)| *name)
            .chain(int_dot(adapter).then_some("int-dot"))
            .collect(),
    }
}

/// Chooses from `list` the adapter `wanted` by index or (part of a) name, without regard to
/// case; without a wish the best type, first listed first. Returns its place and the reason.
/// A number that is no index counts only as a whole word of a name, as in `RX 7900`: else `5`
/// would be found in some version number.
///
/// # Errors
/// No adapter at all, or a wish that none or several meet: the sentence lists the adapters.
pub fn choose(list: &[AdapterReport], wanted: Option<&str>) -> Result<(usize, String)> {
    let Some(best) = list.iter().min_by_key(|a| (a.kind, a.index)) else {
        return Err(Error::Device(
            "no adapter found: install a Vulkan driver (`./x setup` does on Debian and Ubuntu)"
                .into(),
        ));
    };
    let Some(wanted) = wanted else {
        let others = list.len() - 1;
        let reason = match (others, best.kind) {
            (0, _) => "the only adapter".to_owned(),
            (_, AdapterKind::Software) => "no GPU was found".to_owned(),
            (_, kind) => format!("first {kind:?} adapter of {}", list.len()).to_lowercase(),
        };
        return Ok((best.index, reason));
    };
    if let Some(a) = wanted.parse().ok().and_then(|i: usize| list.get(i)) {
        return Ok((a.index, format!("--device {wanted}")));
    }
    let needle = wanted.trim().to_lowercase();
    let number = needle.bytes().all(|b| b.is_ascii_digit());
    let meant = |name: &str| match number {
        true => name.split_whitespace().any(|word| word == needle),
        false => name.contains(&needle),
    };
    let matching: Vec<_> = list.iter().filter(|a| meant(&a.name.to_lowercase())).collect();
    let exact = matching.iter().find(|a| a.name.to_lowercase() == needle);
    match (exact, matching.as_slice()) {
        (Some(a), _) | (None, [a]) => Ok((a.index, format!("--device {wanted}"))),
        (None, found) => {
            let all: Vec<_> = list.iter().map(|a| format!("{}: {}", a.index, a.name)).collect();
            let what = if found.is_empty() { "no adapter" } else { "more than one adapter" };
            Err(Error::Device(format!(
                "--device {wanted} names {what}; there are {}",
                all.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(kinds: &[(AdapterKind, &str)]) -> Vec<AdapterReport> {
        let make = |(index, (kind, name)): (usize, &(AdapterKind, &str))| AdapterReport {
            index,
            name: (*name).to_owned(),
            kind: *kind,
            ..AdapterReport::nameless()
        };
        kinds.iter().enumerate().map(make).collect()
    }

    #[test]
    fn discrete_before_integrated_and_software_last() {
        let l = list(&[
            (AdapterKind::Software, "llvmpipe"),
            (AdapterKind::Integrated, "Radeon 8060S"),
            (AdapterKind::Discrete, "RTX 3090"),
        ]);
        assert_eq!(choose(&l, None).unwrap().0, 2);
        assert_eq!(choose(&l[..2], None).unwrap().0, 1);
        let (i, why) = choose(&l[..1], None).unwrap();
        assert_eq!((i, why.as_str()), (0, "the only adapter"));
    }

    #[test]
    fn by_index_and_by_name() {
        let l = list(&[
            (AdapterKind::Integrated, "Radeon 8060S"),
            (AdapterKind::Discrete, "RTX 3090"),
            (AdapterKind::Discrete, "RTX 3090"),
        ]);
        assert_eq!(choose(&l, Some("0")).unwrap().0, 0);
        assert_eq!(choose(&l, Some("radeon")).unwrap().0, 0);
        assert_eq!(choose(&l, Some("2")).unwrap().0, 2);
        assert_eq!(choose(&l[..2], Some("3090")).unwrap().0, 1);
        for bad in ["7", "80", "arc", "RTX", "", " "] {
            let text = choose(&l, Some(bad)).unwrap_err().to_string();
            assert!(text.contains(bad) && text.contains("1: RTX 3090"), "{text}");
        }
    }

    #[test]
    fn none_at_all() {
        assert!(choose(&[], None).unwrap_err().to_string().contains("Vulkan driver"));
    }
}
