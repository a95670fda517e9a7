//! The devices that model tests run on: this machine's, and poorer ones made of it.

use engine::{
    Engine, EngineOptions,
    gpu::{DeviceOptions, Restrictions},
    kv::KvType,
};
use std::path::Path;

/// Name and options of every device under test. All but the first are poisoned: whatever a new
/// buffer holds is NaN.
pub(crate) fn devices() -> Vec<(&'static str, DeviceOptions)> {
    let make = |restrict, poison, checked_shaders| DeviceOptions {
        restrict,
        poison,
        checked_shaders,
        select: None,
    };
    let none = Restrictions::default;
    vec![
        ("as it is", make(none(), false, false)),
        ("poisoned buffers", make(none(), true, false)),
        ("WebGPU defaults", make(Restrictions { webgpu_defaults: true, ..none() }, true, true)),
        // Less than any embedding or expert tensor of the fixtures, and every kernel that has a
        // workgroup a row folds its grid.
        (
            "small bindings and grids",
            make(
                Restrictions { max_binding: Some(72 << 10), max_workgroups: Some(120), ..none() },
                true,
                true,
            ),
        ),
    ]
}

/// The model at `path` with caches of type `kv`.
pub(crate) fn load(path: &Path, device: DeviceOptions, kv: KvType, chunk: u32) -> Engine {
    let options =
        EngineOptions { device, chunk, cache_k: kv, cache_v: kv, ..EngineOptions::default() };
    Engine::load(path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}
