//! `engine devices`: the adapters of this machine and the choice among them.

use clap::Args;
use engine::{
    Result,
    gpu::{self, AdapterReport},
};
use serde::Serialize;

use super::{args::DeviceArgs, output};

/// Flags of `engine devices`.
#[derive(Args, Debug)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    adapters: &'a [AdapterReport],
    /// Index of the adapter that would run the model.
    chosen: usize,
    reason: &'a str,
}

pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    let select = args.device.device.as_deref();
    if !args.json {
        return list(select);
    }
    let adapters = gpu::adapters();
    let (chosen, reason) = gpu::choose(&adapters, select)?;
    output::json(&Report { adapters: &adapters, chosen, reason: &reason })
}

/// Prints the adapters and which of them `select` chooses.
pub(super) fn list(select: Option<&str>) -> Result<()> {
    let adapters = gpu::adapters();
    let (chosen, reason) = gpu::choose(&adapters, select)?;
    for adapter in &adapters {
        output::result(describe(adapter, adapter.index == chosen, &reason))?;
    }
    Ok(())
}

pub(super) fn describe(adapter: &AdapterReport, chosen: bool, reason: &str) -> String {
    let AdapterReport { index, name, kind, backend, driver, subgroup_size: [min, max], .. } =
        adapter;
    let mark = if chosen { format!(" — chosen: {reason}") } else { String::new() };
    let kind = format!("{kind:?}").to_lowercase();
    let features =
        if adapter.features.is_empty() { "none".to_owned() } else { adapter.features.join(", ") };
    format!(
        "{index}: {name} ({kind}, {backend}, {driver}){mark}\n   \
         limits: binding {}, buffer {}, {} storage buffers a stage, {} invocations and {} of \
         memory a workgroup\n   \
         features: {features}; subgroups of {min} to {max}\n",
        output::size(adapter.max_binding),
        output::size(adapter.max_buffer),
        adapter.max_storage_buffers,
        adapter.max_invocations,
        output::size(adapter.max_workgroup_memory.into()),
    )
}
