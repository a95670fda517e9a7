//! The devices that model tests run on: this machine's, and poorer ones made of it.

use engine::{
    Engine, EngineOptions,
    gpu::{DeviceOptions, Restrictions},
    kv::KvType,
};
use std::path::Path;

/// This machine's device, but for cooperative matrices: logits are compared as of f32.
pub(crate) fn as_it_is() -> DeviceOptions {
    let restrict = Restrictions { matrices: Some(false), ..Restrictions::default() };
    DeviceOptions { restrict, ..DeviceOptions::default() }
}

/// Every new buffer holds NaN, as on the devices below.
pub(crate) fn poisoned() -> DeviceOptions {
    DeviceOptions { poison: true, ..as_it_is() }
}

/// Few rows of x are multiplied as whole numbers, whatever the adapter has, by a GPU's kernels.
pub(crate) fn int_dot() -> DeviceOptions {
    let restrict =
        Restrictions { int_dot: Some(true), software: Some(false), ..as_it_is().restrict };
    DeviceOptions { restrict, ..poisoned() }
}

/// With cooperative matrices, if there are any.
pub(crate) fn matrices() -> DeviceOptions {
    let restrict = Restrictions { matrices: Some(true), ..Restrictions::default() };
    DeviceOptions { restrict, ..poisoned() }
}

/// WebGPU's default limits and no optional feature, a GPU's kernels.
pub(crate) fn webgpu_defaults() -> DeviceOptions {
    let restrict =
        Restrictions { webgpu_defaults: true, software: Some(false), ..Restrictions::default() };
    DeviceOptions { restrict, checked_shaders: true, ..poisoned() }
}

/// Bindings of less than any embedding or expert tensor of the fixtures, and so few workgroups a
/// dimension that every kernel with a workgroup a row folds its grid. The kernels are those of
/// [`poisoned`].
pub(crate) fn small_bindings_and_grids() -> DeviceOptions {
    let restrict = Restrictions {
        max_binding: Some(72 << 10),
        max_workgroups: Some(120),
        ..as_it_is().restrict
    };
    DeviceOptions { restrict, ..poisoned() }
}

/// The model at `path` with caches of type `kv`.
pub(crate) fn load(path: &Path, device: DeviceOptions, kv: KvType, chunk: u32) -> Engine {
    let options =
        EngineOptions { device, chunk, cache_k: kv, cache_v: kv, ..EngineOptions::default() };
    Engine::load(path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}
