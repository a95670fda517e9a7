//! The compiler: Mesa's RADV on its "null device", which compiles for a GPU that is not there.

use ash::vk;
use engine::shader::{self, Shader};
use naga::back::spv;
use std::{ffi::CStr, path::PathBuf};

/// A Vulkan device that compiles and cannot run.
pub(crate) struct Compiler {
    device: ash::Device,
    info: ash::khr::pipeline_executable_properties::Device,
    /// Keeps the loader's code in memory.
    _entry: ash::Entry,
    /// Device and driver.
    pub(crate) name: String,
}

/// What the driver says of a compiled kernel.
pub(crate) struct Compiled {
    /// Lanes of a wave.
    pub(crate) lanes: u32,
    /// Named figures.
    pub(crate) statistics: Vec<(String, u64)>,
    /// The compiler's program, before registers are assigned.
    pub(crate) code: String,
}

/// RADV's manifest for the Vulkan loader.
pub(crate) fn manifest() -> Option<PathBuf> {
    ["/usr/share", "/usr/local/share", "/etc"]
        .iter()
        .flat_map(|root| std::fs::read_dir(format!("{root}/vulkan/icd.d")).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Distributions append the architecture; that of the machine, not of 32-bit games.
            ["radeon_icd.json".into(), format!("radeon_icd.{}.json", std::env::consts::ARCH)]
                .contains(&name.to_string())
        })
}

impl Compiler {
    /// The device for `target`, as the environment of this process has it.
    ///
    /// # Errors
    /// A sentence why there is none.
    pub(crate) fn open(target: &str) -> Result<Self, String> {
        let vulkan = |what: &str, e: vk::Result| format!("RADV: {what}: {e}");
        // SAFETY: the loader is the system's; handles are used with the objects they came from,
        // every pointer is to a local that outlives the call, and features are only enabled
        // where the device reports them. Objects live as long as the process.
        unsafe {
            let entry = ash::Entry::load().map_err(|e| format!("no Vulkan loader: {e}"))?;
            let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let create = vk::InstanceCreateInfo::default().application_info(&app);
            let instance =
                entry.create_instance(&create, None).map_err(|e| vulkan("no instance", e))?;
            let (gpu, name) = find(&instance, target)?;
            let extensions = instance
                .enumerate_device_extension_properties(gpu)
                .map_err(|e| vulkan("no extensions", e))?;
            let has =
                |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
            // wgpu enables the first wherever it exists, and it decides which loads merge.
            let mut names = vec![
                ash::ext::robustness2::NAME.as_ptr(),
                ash::khr::pipeline_executable_properties::NAME.as_ptr(),
            ];
            let matrices = has(ash::khr::cooperative_matrix::NAME);
            if matrices {
                names.push(ash::khr::cooperative_matrix::NAME.as_ptr());
            }
            let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
            let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
            let mut statistics =
                vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
            let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
            let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut statistics)
                .push_next(&mut robustness)
                .push_next(&mut v11)
                .push_next(&mut v12)
                .push_next(&mut v13);
            if matrices {
                features = features.push_next(&mut matrix);
            }
            instance.get_physical_device_features2(gpu, &mut features);
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let create = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names)
                .push_next(&mut features);
            let device =
                instance.create_device(gpu, &create, None).map_err(|e| vulkan("no device", e))?;
            let info = ash::khr::pipeline_executable_properties::Device::new(&instance, &device);
            Ok(Self { device, info, _entry: entry, name })
        }
    }

    /// Compiles `shader` with the layout and options of `src/gpu/kernel.rs`.
    ///
    /// # Errors
    /// A sentence with what naga or the driver says.
    pub(crate) fn compile(&self, shader: &Shader) -> Result<Compiled, String> {
        let spirv = spirv(&shader.module)?;
        let bindings: Vec<u32> = shader.bindings.iter().map(|binding| binding.number).collect();
        // SAFETY: as in `open`; the SPIR-V comes from a validated module, and the layout has the
        // bindings that the module was found to use.
        unsafe { self.pipeline(&spirv, &bindings) }.map_err(|e| format!("RADV: {e}"))
    }

    /// # Safety
    /// `spirv` is valid and uses `bindings` storage buffers and the parameters.
    unsafe fn pipeline(&self, spirv: &[u32], bindings: &[u32]) -> ash::prelude::VkResult<Compiled> {
        // SAFETY: by the contract of this function; what is created is destroyed after its use.
        unsafe {
            let Self { device, info, .. } = self;
            let sets = [set_layout(device, bindings)?];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device.create_pipeline_layout(&layout, None)?;
            let module = vk::ShaderModuleCreateInfo::default().code(spirv);
            let module = device.create_shader_module(&module, None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                // As wgpu does on a device opened with subgroups.
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let create = vk::ComputePipelineCreateInfo::default()
                .flags(
                    vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                        | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR,
                )
                .layout(layout)
                .stage(stage);
            let pipeline = device
                .create_compute_pipelines(vk::PipelineCache::null(), &[create], None)
                .map_err(|(_, e)| e)?[0];
            let executable = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let statistics = info
                .get_pipeline_executable_statistics(&executable)?
                .iter()
                .map(|s| (text(&s.name), s.value.u64))
                .collect();
            let code = self.code(&executable)?;
            let about = vk::PipelineInfoKHR::default().pipeline(pipeline);
            let lanes = info
                .get_pipeline_executable_properties(&about)?
                .first()
                .map_or(0, |e| e.subgroup_size);
            device.destroy_pipeline(pipeline, None);
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(sets[0], None);
            Ok(Compiled { lanes, statistics, code })
        }
    }

    /// # Safety
    /// `executable` is of a living pipeline that captured its representations.
    unsafe fn code(
        &self,
        executable: &vk::PipelineExecutableInfoKHR<'_>,
    ) -> ash::prelude::VkResult<String> {
        let get = self.info.fp().get_pipeline_executable_internal_representations_khr;
        // SAFETY: called twice, as the function wants: for the sizes, then with room of that size.
        unsafe {
            let device = self.device.handle();
            let mut count = 0;
            get(device, executable, &mut count, std::ptr::null_mut()).result()?;
            let mut all =
                vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
            get(device, executable, &mut count, all.as_mut_ptr()).result()?;
            let mut room: Vec<_> = all.iter().map(|one| vec![0_u8; one.data_size]).collect();
            for (one, room) in all.iter_mut().zip(&mut room) {
                one.p_data = room.as_mut_ptr().cast();
            }
            get(device, executable, &mut count, all.as_mut_ptr()).result()?;
            let place = all.iter().position(|one| text(&one.name) == "ACO IR");
            Ok(place.map_or_else(String::new, |i| String::from_utf8_lossy(&room[i]).into_owned()))
        }
    }
}

/// RADV's device for `target`, and its name with that of the driver.
///
/// # Safety
/// `instance` is alive.
unsafe fn find(
    instance: &ash::Instance,
    target: &str,
) -> Result<(vk::PhysicalDevice, String), String> {
    let mut others = Vec::new();
    // SAFETY: by the contract of this function; the structs outlive the calls that fill them.
    unsafe {
        let gpus = instance.enumerate_physical_devices();
        for gpu in gpus.map_err(|e| format!("RADV: no devices: {e}"))? {
            let mut driver = vk::PhysicalDeviceDriverProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
            instance.get_physical_device_properties2(gpu, &mut properties);
            let name = text(&properties.properties.device_name);
            if name.contains(target) {
                return Ok((gpu, format!("{name}, {}", text(&driver.driver_info))));
            }
            others.push(name);
        }
    }
    Err(format!("RADV has no null device {target}, as of Mesa 25 (26 dropped it): {others:?}"))
}

/// Storage buffers, and the parameters.
///
/// # Safety
/// `device` is alive.
unsafe fn set_layout(
    device: &ash::Device,
    buffers: &[u32],
) -> ash::prelude::VkResult<vk::DescriptorSetLayout> {
    let binding = |binding, ty| {
        vk::DescriptorSetLayoutBinding::default()
            .binding(binding)
            .descriptor_type(ty)
            .descriptor_count(1)
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
    };
    let bindings: Vec<_> = (buffers.iter())
        .map(|buffer| binding(*buffer, vk::DescriptorType::STORAGE_BUFFER))
        .chain([binding(shader::PARAMS, vk::DescriptorType::UNIFORM_BUFFER)])
        .collect();
    let create = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: by the contract of this function.
    unsafe { device.create_descriptor_set_layout(&create, None) }
}

/// As wgpu writes it for an unchecked module without zeroed workgroup memory.
fn spirv(module: &naga::Module) -> Result<Vec<u32>, String> {
    use naga::{proc::BoundsCheckPolicy::Unchecked, valid};
    let all = valid::Capabilities::all();
    let info = valid::Validator::new(valid::ValidationFlags::all(), all)
        .validate(module)
        .map_err(|e| e.into_inner().to_string())?;
    let options = spv::Options {
        lang_version: (1, 6),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: Unchecked,
            buffer: Unchecked,
            image_load: Unchecked,
            binding_array: Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    spv::write_vec(module, &info, &options, None).map_err(|e| e.to_string())
}

/// The text in a fixed array that ends with a zero.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<_> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
