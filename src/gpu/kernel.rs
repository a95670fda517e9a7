//! Compiled kernels, one per shader variant, kept for the life of the device.

use super::{
    Gpu,
    device::{PARAM_SLOT, lock},
};
use crate::{
    Error, Result,
    shader::{self, Access, Binding, PARAMS, Variant},
};
use std::{
    collections::HashMap,
    panic::resume_unwind,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, available_parallelism},
};

/// A compiled shader variant.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) interface: Interface,
    /// Numbers of its storage buffers' bindings, rising.
    pub(super) bindings: Vec<u32>,
    /// Which one of the device it is.
    pub(super) number: usize,
    pub(super) name: String,
}

/// What a kernel binds. Kernels that bind alike share it: between two of them there is less to
/// check when a step is encoded.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// Interfaces by what is bound.
pub(super) type Interfaces = HashMap<Vec<wgpu::BindGroupLayoutEntry>, Interface>;

/// Kernels by their variants.
pub(super) type Kernels = HashMap<Variant, Arc<Kernel>>;

impl Gpu {
    /// The kernels of `variants`, and all others so far; new ones compile side by side.
    ///
    /// # Errors
    /// [`Error::Shader`] for a variant that is not listed, does not validate, or asks for more
    /// than this device has.
    pub(super) fn kernels<'a>(
        &self,
        variants: impl Iterator<Item = &'a Variant>,
    ) -> Result<MutexGuard<'_, Kernels>> {
        let mut kernels = lock(&self.inner().kernels);
        let mut new: Vec<_> = variants.filter(|v| !kernels.contains_key(*v)).collect();
        new.sort_unstable();
        new.dedup();
        if new.is_empty() {
            return Ok(kernels);
        }
        let (next, threads) = (AtomicUsize::new(0), available_parallelism().map_or(1, usize::from));
        let compile = || -> Result<Vec<_>> {
            let mut compiled = Vec::new();
            while let Some(variant) = new.get(next.fetch_add(1, Ordering::Relaxed)) {
                compiled.push(((*variant).clone(), Arc::new(self.compile(variant)?)));
            }
            Ok(compiled)
        };
        let compiled: Vec<_> = thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads.min(new.len())).map(|_| scope.spawn(compile)).collect();
            let own = compile();
            let join = |other: thread::ScopedJoinHandle<'_, _>| {
                other.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            [own].into_iter().chain(others.into_iter().map(join)).collect()
        });
        for some in compiled {
            kernels.extend(some?);
        }
        self.inner().pipeline_cache.save();
        Ok(kernels)
    }

    /// Names of all kernels in use: the paths that ran.
    pub fn kernel_names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            lock(&self.inner().kernels).values().map(|k| k.name.clone()).collect();
        names.sort();
        names
    }

    fn compile(&self, variant: &Variant) -> Result<Kernel> {
        let shader = shader::compile(variant)?;
        let caps = self.caps();
        let need = &shader.needs;
        if need.storage_buffers > caps.max_storage_buffers
            || need.invocations > caps.max_invocations
            || need.workgroup_memory > caps.max_workgroup_memory
            || (need.subgroup && !caps.subgroup)
            || (need.matrices && caps.matrices.is_none())
        {
            return Err(Error::Shader(format!(
                "{variant} needs more than this device has: {need:?}"
            )));
        }
        let inner = self.inner();
        if u64::from(shader.param_bytes) > PARAM_SLOT {
            return Err(Error::Shader(format!("{variant}: parameters exceed {PARAM_SLOT} bytes")));
        }
        let interface = self.interface(&shader.bindings);
        let name = variant.to_string();
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&name),
            source: wgpu::ShaderSource::Naga(std::borrow::Cow::Owned(shader.module)),
        };
        // Checked ones clamp indices but leave loops alone: a counter in each keeps the driver
        // from unrolling, and compiling then takes minutes where arrays stay out of registers.
        let checks = wgpu::ShaderRuntimeChecks {
            bounds_checks: inner.checked_shaders,
            ..wgpu::ShaderRuntimeChecks::unchecked()
        };
        // SAFETY: the shaders are this crate's own, and every loop of theirs ends; ops validate
        // every shape they index by, and tests run with and without checks and compare.
        let module = unsafe { inner.device.create_shader_module_trusted(descriptor, checks) };
        let pipeline = inner.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&interface.pipeline),
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: inner.pipeline_cache.raw(),
        });
        self.check()?;
        let number = inner.count_pipeline();
        let bindings = shader.bindings.iter().map(|binding| binding.number).collect();
        Ok(Kernel { pipeline, interface, bindings, number, name })
    }

    /// The interface of kernels with these storage buffers. With the bytes that they have at least,
    /// sizes are checked when a bind group is made and not in every step.
    fn interface(&self, bindings: &[Binding]) -> Interface {
        let entry = |binding, ty, bytes| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset: false,
                min_binding_size: wgpu::BufferSize::new(bytes),
            },
            count: None,
        };
        let storage =
            |access| wgpu::BufferBindingType::Storage { read_only: access == Access::Read };
        let entries: Vec<_> = (bindings.iter())
            .map(|b| entry(b.number, storage(b.access), b.bytes.into()))
            .chain([entry(PARAMS, wgpu::BufferBindingType::Uniform, PARAM_SLOT)])
            .collect();
        let inner = self.inner();
        let mut interfaces = lock(&inner.interfaces);
        let new = |entries: &Vec<_>| {
            let group = inner.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries,
            });
            let pipeline = inner.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&group)],
                immediate_size: 0,
            });
            Interface { group, pipeline }
        };
        interfaces.entry(entries).or_insert_with_key(new).clone()
    }
}
