//! Whether an adapter has an instruction for products of bytes. wgpu offers `dot4I8Packed` on every
//! adapter, but spells it out in shifts and sums where there is none, and does not say so.

/// Whether signed bytes, four a word, are multiplied and summed faster than by separate operations.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn int_dot(adapter: &wgpu::Adapter) -> bool {
    use ash::{khr::shader_integer_dot_product, vk};
    // SAFETY: the handle is only asked for properties, and while `adapter` lives.
    let Some(hal) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else {
        return false;
    };
    let (instance, device) = (hal.shared_instance(), hal.physical_device_capabilities());
    let version = instance.instance_api_version().min(device.properties().api_version);
    if version < vk::API_VERSION_1_3
        && (version < vk::API_VERSION_1_1
            || !device.supports_extension(shader_integer_dot_product::NAME))
    {
        return false;
    }
    let mut dot = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut dot);
    // SAFETY: the instance is of a version that has the function, the device is the instance's,
    // and it knows the structure that is chained.
    unsafe {
        instance
            .raw_instance()
            .get_physical_device_properties2(hal.raw_physical_device(), &mut properties);
    }
    dot.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE
}

#[cfg(target_vendor = "apple")]
pub(super) fn int_dot(_: &wgpu::Adapter) -> bool {
    false
}
