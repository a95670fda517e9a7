//! What naga reads from a kernel: its bindings and what it asks of a device.

use super::Variant;
use crate::{Error, Result};
use naga::{
    AddressSpace, StorageAccess,
    valid::{Capabilities, ValidationFlags, Validator},
};

/// The binding of a kernel's parameters: the first after the storage buffers, of which WebGPU has 8.
pub const PARAMS: u32 = 8;

/// How a kernel uses a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// A storage buffer of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its number in group 0.
    pub number: u32,
    /// What the kernel does with it.
    pub access: Access,
    /// Bytes that it has at least: one element.
    pub bytes: u32,
}

/// What a kernel needs of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Storage buffers.
    pub storage_buffers: u32,
    /// Invocations a workgroup.
    pub invocations: u32,
    /// Workgroup memory in bytes.
    pub workgroup_memory: u32,
    /// Subgroup operations.
    pub subgroup: bool,
    /// Cooperative matrices and f16.
    pub matrices: bool,
}

/// A validated kernel.
#[derive(Clone, Debug)]
pub struct Shader {
    /// The module, for the pipeline.
    pub module: naga::Module,
    /// Storage buffers, in the order of their numbers: a variant may leave some out.
    pub bindings: Vec<Binding>,
    /// Bytes of the parameter struct.
    pub param_bytes: u32,
    /// What it needs.
    pub needs: Needs,
}

pub(super) fn compile(variant: &Variant, wgsl: &str) -> Result<Shader> {
    let fault = |what: String| Error::Shader(format!("{variant}: {what}"));
    let module = naga::front::wgsl::parse_str(wgsl)
        .map_err(|e| fault(e.emit_to_string_with_path(wgsl, &variant.to_string())))?;
    let validate = |with: Capabilities| {
        Validator::new(ValidationFlags::all(), with).validate(&module).map_err(Box::new)
    };
    // Every WebGPU device converts f16 in u32 words, whatever else it lacks.
    let base = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let subgroup = validate(base).is_err();
    let matrices = subgroup && validate(base | Capabilities::SUBGROUP).is_err();
    if matrices {
        let all = Capabilities::SUBGROUP
            | Capabilities::SHADER_FLOAT16
            | Capabilities::COOPERATIVE_MATRIX;
        validate(base | all)
            .map_err(|e| fault(e.emit_to_string_with_path(wgsl, &variant.to_string())))?;
    }
    let [entry] = module.entry_points.as_slice() else {
        return Err(fault("one entry point is wanted".into()));
    };
    let invocations = entry.workgroup_size.iter().product();
    let mut workgroup_memory = 0;
    let mut param_bytes = 0;
    let mut storage = Vec::new();
    for (_, global) in module.global_variables.iter() {
        let bytes = module.types[global.ty].inner.size(module.to_ctx());
        let place = global.binding.as_ref().map(|b| (b.group, b.binding));
        match (global.space, place) {
            (AddressSpace::WorkGroup, _) => workgroup_memory += bytes,
            (AddressSpace::Uniform, Some((0, PARAMS))) => param_bytes = bytes,
            (AddressSpace::Storage { access }, Some((0, number))) => {
                let write = access.contains(StorageAccess::STORE);
                let access = if write { Access::ReadWrite } else { Access::Read };
                storage.push(Binding { number, access, bytes });
            }
            (AddressSpace::Private | AddressSpace::Function, _) => {}
            (space, place) => {
                return Err(fault(format!("{space:?} at {place:?} is not used here")));
            }
        }
    }
    storage.sort_by_key(|binding| binding.number);
    let storage_buffers = storage.len() as u32;
    let needs = Needs { storage_buffers, invocations, workgroup_memory, subgroup, matrices };
    Ok(Shader { module, bindings: storage, param_bytes, needs })
}

#[cfg(test)]
mod tests {
    use crate::shader;

    /// WebGPU's default limits; a variant flagged `subgroup` has a twin without it.
    #[test]
    fn every_listed_variant_is_valid_and_portable() {
        assert!(!shader::listed().is_empty());
        for variant in shader::listed() {
            let needs = shader::compile(variant).unwrap_or_else(|e| panic!("{e}")).needs;
            assert!(needs.storage_buffers <= 8, "{variant}: {needs:?}");
            assert!(needs.invocations <= 256, "{variant}: {needs:?}");
            assert!(needs.workgroup_memory <= 16384, "{variant}: {needs:?}");
            let told = variant.get("subgroup").is_some() || variant.get("EDGE").is_some();
            assert!(!needs.subgroup || told, "{variant}: {needs:?}");
            // Products by cooperative matrices have the tiled product in their stead.
            if needs.subgroup && !needs.matrices {
                let twin = variant.to_string().replace(" subgroup", "");
                let found = shader::listed().iter().any(|v| v.to_string() == twin);
                assert!(found, "{variant} has no twin without subgroups");
            }
        }
    }

    #[test]
    fn an_unlisted_variant_is_refused() {
        let odd = shader::Variant::new("rms_norm").flag("odd", true);
        let text = shader::compile(&odd).unwrap_err().to_string();
        assert!(text.contains("rms_norm odd") && text.contains("variants.txt"), "{text}");
    }
}
