//! Flag groups that several commands share (spec/cli-and-server.md 2 and 3). Starred flags of the
//! spec also read their `LLAMA_ARG_*` variable; the flag wins.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use engine::{
    EngineOptions,
    generate::GenerateOptions,
    gpu::{DeviceOptions, user_cache},
    kv::{KvHost, KvType, LONGEST},
    model::{RopeOverride, ScalingKind},
    ngram::Storage,
    plan::{Checkpoints, MemoryLimits},
    sample::PartialSampling,
};

/// Which device.
#[derive(Args, Debug)]
pub(crate) struct DeviceArgs {
    /// Device by index or by (part of its) name, as `engine devices` lists them
    #[arg(long, value_name = "INDEX|NAME")]
    pub(crate) device: Option<String>,
}

impl DeviceArgs {
    /// How to open it; compiled pipelines are kept for the next start.
    pub(crate) fn options(&self) -> DeviceOptions {
        let (select, cache) = (self.device.clone(), user_cache());
        DeviceOptions { select, cache, ..Default::default() }
    }
}

/// How to choose tokens; what is not given comes from the model file, then from the defaults.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most probable token [default: 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T")]
    temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<i32>,
    /// Keep the most probable tokens up to a total probability of P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens with at least P times the largest probability; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Keep the tokens of most typical surprise up to a total probability of P [default: 1, off]
    #[arg(long = "typical", alias = "typical-p", value_name = "P")]
    typical_p: Option<f32>,
    /// Keep logits within N standard deviations of the largest [default: -1, off]
    #[arg(long = "top-nsigma", alias = "top-n-sigma", value_name = "N")]
    top_n_sigma: Option<f32>,
    /// Divide positive and multiply negative logits of seen tokens by X [default: 1, off]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// How many tokens back the penalties look; 0 none, -1 all [default: 64]
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<i32>,
    /// Subtract X from the logit of every seen token [default: 0]
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f32>,
    /// Subtract X from the logit of a seen token for each time it was seen [default: 0]
    #[arg(long, value_name = "X")]
    frequency_penalty: Option<f32>,
    /// Seed of the draws; -1 takes a random one, which is printed [default: -1]
    #[arg(short, long, value_name = "N")]
    seed: Option<i64>,
    /// Add to the logit of one token: `15043+1`, `15043-0.5`, or `15043-inf` to ban it; repeatable
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
}

impl SamplingArgs {
    /// What was given on the command line.
    pub(crate) fn partial(&self) -> PartialSampling {
        PartialSampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            logit_bias: (!self.logit_bias.is_empty()).then(|| self.logit_bias.clone()),
        }
    }
}

/// `ID+BIAS` or `ID-BIAS`, the bias also `inf`.
fn parse_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let parsed = text.find(['+', '-']).and_then(|sign| {
        let (id, bias) = text.split_at(sign);
        Some((id.parse().ok()?, bias.parse().ok()?))
    });
    parsed.ok_or_else(|| "expected a token id, a sign and a number, like 15043-0.5".into())
}

/// Which model, where, and how it is set up.
#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// GGUF file; of a model in several files, any one [default: the demo model]
    #[arg(short, long, value_name = "FILE", env = "LLAMA_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Most tokens a sequence can hold; 0: as many as the model was trained for
    #[arg(short, long, value_name = "N", default_value_t = 0, env = "LLAMA_ARG_CTX_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(LONGEST)))]
    ctx_size: u32,
    /// Upper bound of --ubatch-size
    #[arg(short, long, value_name = "N", default_value_t = 2048, env = "LLAMA_ARG_BATCH")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Most prompt tokens processed at once
    #[arg(long, value_name = "N", default_value_t = 512, env = "LLAMA_ARG_UBATCH")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ubatch_size: u32,
    /// Accepted for llama.cpp's sake: all layers run on the device
    #[arg(long, alias = "gpu-layers", value_name = "N|auto|all", value_parser = parse_layers)]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS")]
    pub(crate) n_gpu_layers: Option<u32>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Which memory keys and values go to: the device's and then the host's, the host's, or the
    /// device's only
    #[arg(long, value_enum, default_value_t = KvHostArg::Auto, value_name = "WHERE")]
    kv_host: KvHostArg,
    /// Bytes of device memory through which prompts read keys and values of one layer that lie in
    /// host memory, at least 4M
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = parse_staging)]
    kv_staging: u64,
    /// Print the traffic of keys and values
    #[arg(long)]
    pub(crate) kv_stats: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Layers, from the first, whose experts are in host memory, read in place by the device
    #[arg(long, alias = "n-cpu-moe", value_name = "N|all", default_value = "0")]
    #[arg(value_parser = parse_some_layers, env = "LLAMA_ARG_N_CPU_MOE")]
    experts_host: u32,
    /// Where rows of an n-gram table are read from: the file, or memory that holds all of it
    #[arg(long, value_enum, default_value_t = NgramStorage::Disk, value_name = "WHERE")]
    ngram: NgramStorage,
    /// Refuse a model or a context that does not fit memory, and shorten a context that --ctx-size
    /// does not ask for
    #[arg(long, value_enum, default_value_t = Fit::On, env = "LLAMA_ARG_FIT")]
    fit: Fit,
    /// Print the time each op took on the device
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    rope: RopeArgs,
}

impl ModelArgs {
    /// How the engine is to load the model, with room for so many sequences and checkpoints.
    pub(crate) fn options(&self, sequences: u16, checkpoints: Checkpoints) -> EngineOptions {
        EngineOptions {
            device: self.device.options(),
            context: (self.ctx_size > 0).then_some(self.ctx_size),
            sequences: sequences.into(),
            chunk: self.ubatch_size.min(self.batch_size),
            cache_k: self.cache.types().0,
            cache_v: self.cache.types().1,
            kv_host: self.kv_host.into(),
            kv_staging: self.kv_staging,
            memory: self.memory.limits(),
            experts_host: self.experts_host,
            fit: matches!(self.fit, Fit::On),
            profile: self.profile,
            time_reads: self.kv_stats,
            rope: self.rope.changes(),
            ngram: self.ngram.into(),
            checkpoints,
        }
    }
}

/// What memory there is to be used.
#[derive(Args, Debug)]
pub(crate) struct MemoryArgs {
    /// Bytes of device memory to use at most; with K, M or G behind the number, of 1024 [default:
    /// what the driver says there is]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    device_memory: Option<u64>,
    /// Bytes of host memory for the device to use in place at most, likewise [default: what the
    /// system says is free]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    host_memory: Option<u64>,
    /// MiB of device memory to leave free [default: 512, or 3 % of it]
    #[arg(long, value_name = "MIB", env = "LLAMA_ARG_FIT_TARGET")]
    fit_target: Option<u32>,
}

impl MemoryArgs {
    pub(crate) fn limits(&self) -> MemoryLimits {
        MemoryLimits {
            device: self.device_memory,
            host: self.host_memory,
            reserve: self.fit_target.map(|mib| u64::from(mib) << 20),
        }
    }
}

/// Whether to fit a model into memory.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fit {
    On,
    Off,
}

/// A number of bytes: `17179869184`, `16G`, `512MiB`.
pub(crate) fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected a number of bytes, like 16G or 512M".into()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a number of bytes, like 16G or 512M".into())
}

/// Bytes of `--kv-staging`.
pub(crate) fn parse_staging(text: &str) -> std::result::Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < 4 << 20 => Err("it takes at least 4M".into()),
        bytes => Ok(bytes),
    }
}

/// A factor that can be inverted.
fn parse_scale(text: &str) -> std::result::Result<f64, String> {
    let scale = text.parse().ok().filter(|scale: &f64| scale.is_normal() && *scale > 0.0);
    scale.ok_or_else(|| "expected a number above 0".into())
}

/// A number of layers; `all` is more than any model has.
pub(crate) fn parse_some_layers(text: &str) -> std::result::Result<u32, String> {
    match text {
        "all" => Ok(u32::MAX),
        _ => text.parse().map_err(|_| "expected a number or all".into()),
    }
}

/// A number of layers; `auto` and `all` are more than any model has.
pub(crate) fn parse_layers(text: &str) -> std::result::Result<u32, String> {
    match text {
        "auto" | "all" => Ok(u32::MAX),
        // llama.cpp takes any negative number as all.
        _ => text.parse::<i64>().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
    }
    .map_err(|_| "expected a number, auto or all".into())
}

/// Where an n-gram table is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NgramStorage {
    Disk,
    Ram,
}

impl From<NgramStorage> for Storage {
    fn from(storage: NgramStorage) -> Self {
        match storage {
            NgramStorage::Disk => Self::Disk,
            NgramStorage::Ram => Self::Ram,
        }
    }
}

/// Which memory keys and values go to.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KvHostArg {
    Auto,
    On,
    Off,
}

impl From<KvHostArg> for KvHost {
    fn from(wish: KvHostArg) -> Self {
        match wish {
            KvHostArg::Auto => Self::Auto,
            KvHostArg::On => Self::On,
            KvHostArg::Off => Self::Off,
        }
    }
}

/// Types of the KV cache.
#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    /// Number format of cached keys
    #[arg(long, value_name = "TYPE", value_parser = cache_types(), default_value_t = KvType::F16)]
    #[arg(env = "LLAMA_ARG_CACHE_TYPE_K")]
    cache_type_k: KvType,
    /// Number format of cached values
    #[arg(long, value_name = "TYPE", value_parser = cache_types(), default_value_t = KvType::F16)]
    #[arg(env = "LLAMA_ARG_CACHE_TYPE_V")]
    cache_type_v: KvType,
}

impl CacheArgs {
    /// Of keys and of values.
    pub(crate) fn types(&self) -> (KvType, KvType) {
        (self.cache_type_k, self.cache_type_v)
    }
}

/// The number formats of cached keys or values, by name.
pub(crate) fn cache_types() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| name.parse())
}

/// Rotary embedding; what is not given comes from the model file.
#[derive(Args, Debug)]
#[command(next_help_heading = "Rotary embedding")]
struct RopeArgs {
    /// How positions beyond the trained context are scaled
    #[arg(long, value_enum, env = "LLAMA_ARG_ROPE_SCALING_TYPE")]
    rope_scaling: Option<ScalingArg>,
    /// Context scale factor
    #[arg(long, value_name = "X", conflicts_with = "rope_freq_scale")]
    rope_scale: Option<f64>,
    /// Base of the frequencies
    #[arg(long, value_name = "X")]
    rope_freq_base: Option<f64>,
    /// Frequency scale factor, the inverse of --rope-scale
    #[arg(long, value_name = "X", value_parser = parse_scale)]
    rope_freq_scale: Option<f64>,
    /// YaRN: context the model was trained for before scaling
    #[arg(long, value_name = "N")]
    yarn_orig_ctx: Option<u32>,
    /// YaRN: weight of extrapolation
    #[arg(long, value_name = "X")]
    yarn_ext_factor: Option<f64>,
    /// YaRN: scale of attention
    #[arg(long, value_name = "X")]
    yarn_attn_factor: Option<f64>,
    /// YaRN: rotations above which frequencies stay as they are
    #[arg(long, value_name = "X")]
    yarn_beta_fast: Option<f64>,
    /// YaRN: rotations below which frequencies are scaled in full
    #[arg(long, value_name = "X")]
    yarn_beta_slow: Option<f64>,
}

/// Kinds of rotary scaling.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScalingArg {
    None,
    Linear,
    Yarn,
}

impl RopeArgs {
    fn changes(&self) -> RopeOverride {
        RopeOverride {
            scaling: self.rope_scaling.map(|kind| match kind {
                ScalingArg::None => ScalingKind::None,
                ScalingArg::Linear => ScalingKind::Linear,
                ScalingArg::Yarn => ScalingKind::Yarn,
            }),
            factor: self.rope_scale.or(self.rope_freq_scale.map(f64::recip)),
            base: self.rope_freq_base,
            original_context: self.yarn_orig_ctx,
            ext_factor: self.yarn_ext_factor,
            attn_factor: self.yarn_attn_factor,
            beta_fast: self.yarn_beta_fast,
            beta_slow: self.yarn_beta_slow,
        }
    }
}

/// When generation ends and what is shown.
#[derive(Args, Debug)]
#[command(next_help_heading = "Generation")]
pub(crate) struct GenerateArgs {
    /// Most tokens to generate; -1: until the model ends or the context is full
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..), env = "LLAMA_ARG_N_PREDICT")]
    predict: i64,
    /// End generation before this text; repeatable
    #[arg(short = 'r', long = "stop", visible_alias = "reverse-prompt", value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after end-of-generation tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Show control tokens in the output
    #[arg(long)]
    special: bool,
}

impl GenerateArgs {
    pub(crate) fn options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            show_special: self.special,
        }
    }
}
