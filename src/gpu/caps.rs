//! What the opened device can do, gathered once. Ops choose variants by it.

use super::{AdapterKind, Matrices, int_dot::int_dot, matrices};

/// Capabilities and limits of the opened device.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Subgroup operations may be used (of any size).
    pub subgroup: bool,
    /// Cooperative matrices that products use.
    pub matrices: Option<Matrices>,
    /// Invocations of every subgroup, where it is always the same number and subgroup operations may
    /// be used.
    pub subgroup_size: Option<u32>,
    /// Products of bytes are fast: activations are quantised for few rows.
    pub int_dot: bool,
    /// The device is software: a subgroup is a vector of the CPU's, so that loads are quick where its
    /// invocations share an address, and what they do for each other is slow.
    pub software: bool,
    /// Buffers in host memory can be read and written in place.
    pub host_buffers: bool,
    /// Timestamps can be written between the dispatches of one pass.
    pub timestamps: bool,
    /// Largest storage binding, in bytes, a multiple of 16.
    pub max_binding: u64,
    /// Storage buffers a kernel can bind.
    pub max_storage_buffers: u32,
    /// Invocations in a workgroup.
    pub max_invocations: u32,
    /// Workgroup memory, in bytes.
    pub max_workgroup_memory: u32,
    /// Workgroups in one dimension of a dispatch.
    pub max_workgroups: u32,
}

impl Caps {
    /// Those of a GPU of these days, for plans of machines that are not at hand.
    pub fn usual() -> Self {
        Self {
            subgroup: true,
            matrices: Some(Matrices { edge: 16, lanes: 64 }),
            subgroup_size: None,
            int_dot: true,
            software: false,
            host_buffers: true,
            timestamps: true,
            // spec/kv-offload.md 8.
            max_binding: (1 << 31) - 16,
            max_storage_buffers: 64,
            max_invocations: 1024,
            max_workgroup_memory: 32 << 10,
            max_workgroups: 65_535,
        }
    }
}

/// Ways to make a device poorer than it is, so that tests on any machine cover poor ones.
#[derive(Clone, Debug, Default)]
pub struct Restrictions {
    /// WebGPU's default limits and no optional feature.
    pub webgpu_defaults: bool,
    /// No subgroup operations.
    pub no_subgroup: bool,
    /// Cooperative matrices are used or not, where there are any; else GPUs use them, and software
    /// does not, which has no multipliers for them.
    pub matrices: Option<bool>,
    /// Products of bytes are to be used or not, whatever the adapter has.
    pub int_dot: Option<bool>,
    /// Kernels for software are to be used or not, whatever the adapter is.
    pub software: Option<bool>,
    /// A smaller limit for one storage binding and one buffer, in bytes.
    pub max_binding: Option<u64>,
    /// A smaller limit for the workgroups of one dimension.
    pub max_workgroups: Option<u32>,
    /// Bytes of device memory after which allocations fail, whatever the driver has said.
    pub memory: Option<u64>,
    /// Another type than that of the adapter.
    pub kind: Option<AdapterKind>,
}

impl Restrictions {
    pub(super) fn features(&self, adapter: wgpu::Features) -> wgpu::Features {
        if self.webgpu_defaults {
            return wgpu::Features::empty();
        }
        let mut used = wgpu::Features::empty();
        for (feature, _) in super::adapter::USED_FEATURES {
            used |= feature & adapter;
        }
        if self.no_subgroup {
            used.remove(matrices::FEATURES);
        }
        used
    }

    pub(super) fn limits(&self, adapter: wgpu::Limits) -> wgpu::Limits {
        let mut limits = if self.webgpu_defaults { wgpu::Limits::default() } else { adapter };
        if let Some(bytes) = self.max_binding {
            limits.max_storage_buffer_binding_size =
                limits.max_storage_buffer_binding_size.min(bytes);
        }
        limits
    }

    pub(super) fn caps(
        &self,
        adapter: &wgpu::Adapter,
        features: wgpu::Features,
        limits: &wgpu::Limits,
    ) -> Caps {
        let info = adapter.get_info();
        let subgroup = features.contains(wgpu::Features::SUBGROUP);
        let fixed = info.subgroup_min_size == info.subgroup_max_size;
        let software = self.software.unwrap_or(info.device_type == wgpu::DeviceType::Cpu);
        let matrices = self.matrices.unwrap_or(!software) && features.contains(matrices::FEATURES);
        // Kernels take four subgroups.
        let fits = |m: &Matrices| 4 * m.lanes <= limits.max_compute_invocations_per_workgroup;
        let binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let workgroups = limits.max_compute_workgroups_per_dimension;
        Caps {
            subgroup,
            subgroup_size: (subgroup && fixed).then_some(info.subgroup_min_size),
            int_dot: self.int_dot.unwrap_or_else(|| !self.webgpu_defaults && int_dot(adapter)),
            software,
            matrices: Matrices::of(adapter).filter(|m| matrices && fits(m)),
            host_buffers: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            max_binding: binding & !15,
            max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
            max_invocations: limits.max_compute_invocations_per_workgroup,
            max_workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_workgroups: self.max_workgroups.map_or(workgroups, |m| m.min(workgroups)),
        }
    }
}
