//! The plan that a model is loaded by.

use super::EngineOptions;
use crate::{
    Result,
    gguf::Gguf,
    gpu::{Gpu, MemoryReport},
    kv::{Placement, Resident},
    model::ModelConfig,
    plan::{Bandwidth, Choices, Context, Heaps, Model, Plan},
};

/// What a plan says of the engine that is loaded by it.
pub(super) struct Fitted {
    /// Tokens of context.
    pub(super) context: u32,
    /// Where the cache goes.
    pub(super) placement: Placement,
    /// Bytes of the cache of full contexts.
    pub(super) resident: Resident,
    /// Tokens of a full context that are cached in host memory.
    pub(super) host_tokens: u32,
}

/// A context that fits and where its cache goes; nothing where the system does not tell how much
/// memory there is.
///
/// # Errors
/// [`crate::Error::Device`] when the context that was asked for does not fit, or none does.
pub(super) fn fit(
    gguf: &Gguf,
    config: &ModelConfig,
    options: &EngineOptions,
    gpu: &Gpu,
) -> Result<Option<Fitted>> {
    let heaps = match Heaps::of(gpu.adapter_memory(), options.memory) {
        Ok(heaps) => heaps,
        Err(error) => {
            tracing::warn!("whether the model fits is not known: {error}");
            return Ok(None);
        }
    };
    let name = config.arch.name().to_owned();
    let model = Model::of_file(gguf, gguf.metadata().optional("general.name")?.unwrap_or(&name))?;
    let trained = config.rope.reach(config.context_length);
    let plan = |context| {
        let choices = Choices {
            context: Context::Tokens(context),
            sequences: options.sequences,
            cache_k: options.cache_k,
            cache_v: options.cache_v,
            kv_host: options.kv_host,
            kv_staging: options.kv_staging,
            chunk: options.chunk,
            experts_host: options.experts_host,
            ngram: options.ngram,
            checkpoints: options.checkpoints,
            bandwidth: Bandwidth::default(),
        };
        Plan::new(&model, &choices, gpu.caps(), &heaps)
    };
    let mut found = plan(options.context.unwrap_or(trained))?;
    if !found.fits && options.context.is_none() && found.max_context > 0 {
        let shorter = plan(found.max_context)?;
        tracing::warn!("a context of {} does not fit; {} does", found.context, shorter.context);
        found = shorter;
    }
    if let Err(error) = found.check() {
        tracing::error!("\n{found}");
        return Err(error);
    }
    let Plan { context, placement, memory: MemoryReport { device, host }, .. } = found;
    let share = host.kv as f64 / (device.kv + host.kv).max(1) as f64;
    let host_tokens = (share * f64::from(context)).round() as u32;
    Ok(Some(Fitted { context, placement, resident: Resident::of(&found.memory), host_tokens }))
}
