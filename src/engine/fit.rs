//! The plan that a model is loaded by.

use super::EngineOptions;
use crate::{
    Result,
    gguf::Gguf,
    gpu::Gpu,
    kv::Placement,
    model::ModelConfig,
    plan::{Bandwidth, Choices, Context, Heaps, Model, Plan},
};

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
) -> Result<Option<(u32, Placement)>> {
    let heaps = Heaps::of(gpu.adapter_memory(), options.device_memory, options.host_memory);
    let heaps = match heaps {
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
    Ok(Some((found.context, found.placement)))
}
