//! What can be chosen when a model is loaded.

use crate::{
    gpu::DeviceOptions,
    kv::{KvHost, KvType, STAGING},
    model::RopeOverride,
    ngram::Storage,
    plan::{Checkpoints, MemoryLimits},
};

/// How to load a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Which device, and how.
    pub device: DeviceOptions,
    /// Tokens a sequence can hold; none: as many as the model was trained for,
    /// stretched where YaRN is on.
    pub context: Option<u32>,
    /// Sequences side by side that memory is to have room for, each of the whole context.
    pub sequences: u32,
    /// Tokens of a prefill step.
    pub chunk: u32,
    /// Type of the cached keys.
    pub cache_k: KvType,
    /// Type of the cached values.
    pub cache_v: KvType,
    /// Which memory keys and values go to.
    pub kv_host: KvHost,
    /// Bytes of device memory through which prompts read keys and values of one layer that lie in
    /// host memory; small ones are for tests.
    pub kv_staging: u64,
    /// What memory there is to be used.
    pub memory: MemoryLimits,
    /// Layers, from the first, whose experts are in host memory, read in place.
    pub experts_host: u32,
    /// Refuse a model or a context that does not fit the memory there is, and shorten a context
    /// that nobody asked for.
    pub fit: bool,
    /// Checkpoints that whoever drives the engine keeps, so that they are planned.
    pub checkpoints: Checkpoints,
    /// Measure every op.
    pub profile: bool,
    /// Measure how long decoding reads keys and values.
    pub time_reads: bool,
    /// What to change about rotary embedding.
    pub rope: RopeOverride,
    /// Where the rows of an n-gram table are read from.
    pub ngram: Storage,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceOptions::default(),
            context: None,
            sequences: 1,
            chunk: 512,
            cache_k: KvType::F16,
            cache_v: KvType::F16,
            kv_host: KvHost::default(),
            kv_staging: STAGING,
            memory: MemoryLimits::default(),
            experts_host: 0,
            fit: false,
            checkpoints: Checkpoints::default(),
            profile: false,
            time_reads: false,
            rope: RopeOverride::default(),
            ngram: Storage::default(),
        }
    }
}
