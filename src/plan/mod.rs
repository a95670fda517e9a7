//! Which bytes go where, before anything is loaded (spec/kv-offload.md 7).
//!
//! Whatever the engine allocates through [`crate::gpu::Memory`] is planned by running the same
//! code over a [`crate::gpu::Ledger`]; weights are cut by the code that uploads them. A plan
//! counts a full context in every sequence.

mod heaps;
mod known;
mod measure;
mod mix;
mod model;
mod reads;
mod table;
mod weights;

pub use heaps::{HeapSize, Heaps, MemoryLimits};
pub use known::names;
pub use mix::Weights;
pub use model::{Model, PlannedTensor};
pub use reads::{Bandwidth, Reads};

use crate::{
    Error, Result,
    gpu::{Caps, MemoryReport, Usage},
    kv::{CacheOptions, GRAIN, KvHost, KvType, Placement},
    ngram::Storage,
};
use measure::{Measured, measure};
use serde::Serialize;
use weights::WeightBytes;

/// What is planned for.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Tokens of one sequence.
    pub context: Context,
    /// Sequences, at least 1.
    pub sequences: u32,
    /// Type of the cached keys.
    pub cache_k: KvType,
    /// Type of the cached values.
    pub cache_v: KvType,
    /// Which memory keys and values go to.
    pub kv_host: KvHost,
    /// Bytes through which a prompt's step streams keys and values that lie in host memory.
    pub kv_staging: u64,
    /// Tokens of a prefill step.
    pub chunk: u32,
    /// Layers, from the first, whose experts are in host memory.
    pub experts_host: u32,
    /// Where rows of an n-gram table are read from.
    pub ngram: Storage,
    /// The checkpoints that are kept.
    pub checkpoints: Checkpoints,
    /// What reading costs.
    pub bandwidth: Bandwidth,
}

impl Choices {
    fn cache(&self) -> CacheOptions {
        CacheOptions { k: self.cache_k, v: self.cache_v, staging: self.kv_staging }
    }
}

/// Points of sequences that are kept to go back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoints {
    /// Bytes for those of all sequences together.
    pub memory: u64,
    /// Most of one sequence.
    pub count: u32,
}

/// How long a sequence is planned to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// As long as the model was trained for, stretched where YaRN is on.
    Trained,
    /// As long as fits.
    Max,
    /// So many tokens.
    Tokens(u32),
}

/// Where everything goes. Sizes are bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The model.
    pub model: String,
    /// Tokens of one sequence.
    pub context: u32,
    /// Sequences.
    pub sequences: u32,
    /// What a token adds.
    pub bytes_per_token: PerToken,
    /// What everything takes.
    pub bytes: Bytes,
    /// The device, then the host.
    pub heaps: Vec<HeapPlan>,
    /// The longest context that fits, in every sequence; 0 if the model itself does not fit.
    pub max_context: u32,
    /// What decoding a token reads at several depths.
    pub read_per_token: Vec<Reads>,
    /// Whether the context fits.
    pub fits: bool,
    /// What to know besides.
    pub notes: Vec<String>,
    /// How much of the cache each heap has room for beside everything else.
    #[serde(skip)]
    pub placement: Placement,
    /// What sequences and scratch take.
    #[serde(skip)]
    pub memory: MemoryReport,
}

/// What a token adds to the memory of its sequence, averaged over a block of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PerToken {
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Both.
    pub kv: u64,
    /// Index keys of single tokens.
    pub index_raw: u64,
    /// Index keys of blocks.
    pub index_pooled: u64,
    /// Of all that, in host memory, once the device has no more room for keys and values.
    pub host: u64,
    /// On the device.
    pub device: u64,
    /// Everywhere.
    pub total: u64,
}

/// What everything takes, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Weights on the device.
    pub weights_device: u64,
    /// Weights in host memory that the device reads in place.
    pub weights_host: u64,
    /// The n-gram table, which takes memory only if it is not read from the disk.
    pub ngram_table: u64,
    /// Keys and values, wherever they are.
    pub kv: u64,
    /// Index keys of single tokens, likewise.
    pub index_raw: u64,
    /// Index keys of blocks.
    pub index_pooled: u64,
    /// State of fixed size.
    pub recurrent: u64,
    /// Copies of it to go back to.
    pub checkpoints: u64,
    /// Activations, parameters of recordings, logits.
    pub workspace: u64,
    /// Through which keys and values of the host are streamed.
    pub staging: u64,
    /// Left free on both heaps together.
    pub reserve: u64,
}

/// What is planned for a heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeapPlan {
    /// `device` or `host`.
    pub name: &'static str,
    /// What there is.
    pub size: u64,
    /// What is used of it.
    pub planned: u64,
    /// What is left free.
    pub reserve: u64,
    /// Where the size is from.
    pub source: String,
}

/// All that a plan follows from.
struct Planner<'a> {
    model: &'a Model,
    choices: &'a Choices,
    caps: &'a Caps,
    heaps: &'a Heaps,
    weights: WeightBytes,
}

/// Everything at one context.
struct Outcome {
    measured: Measured,
    device: u64,
    host: u64,
    /// What prompts copy keys and values in host memory through.
    streaming: Usage,
    fits: bool,
    placement: Placement,
}

impl Plan {
    /// Plans `model` with `choices` on a device of `caps` and `heaps`.
    ///
    /// # Errors
    /// [`Error::Device`] when something exceeds a binding or host memory cannot be read in place.
    pub fn new(model: &Model, choices: &Choices, caps: &Caps, heaps: &Heaps) -> Result<Self> {
        let weights = WeightBytes::of(model, choices.experts_host, caps.max_binding)?;
        let planner = Planner { model, choices, caps, heaps, weights };
        let max_context = planner.max_context()?;
        let context = match choices.context {
            Context::Trained => model.reach(),
            Context::Max => max_context.max(GRAIN),
            Context::Tokens(n) => n,
        };
        let outcome = planner.at(context)?;
        Ok(planner.plan(context, max_context, &outcome))
    }

    /// The sentence for a plan that does not fit.
    ///
    /// # Errors
    /// [`Error::Memory`] that names the heaps and the longest context that fits.
    pub fn check(&self) -> Result<()> {
        if self.fits {
            return Ok(());
        }
        let heap = |h: &HeapPlan| {
            format!("{} MiB of {} with {} kept free", mib(h.planned), h.name, mib(h.reserve))
                + &format!(" of {}", mib(h.size))
        };
        let heaps: Vec<_> = self.heaps.iter().filter(|h| h.planned > 0).map(heap).collect();
        let other = match self.max_context {
            0 => "the model does not fit with any context".to_owned(),
            n => format!("a context of {n} would fit"),
        };
        Err(Error::Memory(format!(
            "{} with a context of {} does not fit: it needs {}; {other}",
            self.model,
            self.context,
            heaps.join(" and ")
        )))
    }
}

/// Bytes that decoding a token of `model` reads at any depth: weights, of experts only those used,
/// and the state of fixed size, read and written.
///
/// # Errors
/// [`Error::Device`] when something exceeds a binding.
pub fn fixed_reads(model: &Model, choices: &Choices, caps: &Caps) -> Result<u64> {
    let weights = WeightBytes::of(model, choices.experts_host, caps.max_binding)?;
    let measured = measure(&model.config, choices, caps, GRAIN, (KvHost::Off, u64::MAX))?;
    Ok(weights.read() + 2 * measured.state_bytes())
}

/// Bytes in MiB with two decimals.
fn mib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / (1 << 20) as f64)
}

impl Planner<'_> {
    /// Everything at `context`.
    fn at(&self, context: u32) -> Result<Outcome> {
        let Self { model, choices, caps, heaps, weights } = self;
        let measure = |wish| measure(&model.config, choices, caps, context, wish);
        // All on the device: what must be there, and how much may be besides.
        let all = measure((KvHost::Off, u64::MAX))?;
        let Usage { kv, index_raw, total, .. } = all.memory.device;
        let fixed = weights.device + (total - kv - index_raw);
        let all_heaps = heaps.shared.unwrap_or(u64::MAX);
        let room = heaps.device.free().min(all_heaps).saturating_sub(fixed);
        let on_host = match choices.kv_host {
            KvHost::Off => false,
            KvHost::On => kv > 0,
            KvHost::Auto => kv + index_raw > room && caps.host_buffers,
        };
        let streaming = if on_host { all.streaming(caps, context)? } else { Usage::default() };
        let room = room.saturating_sub(streaming.total);
        let measured = match on_host {
            true => measure((choices.kv_host, room))?,
            false => all,
        };
        let table = if choices.ngram == Storage::Ram { weights.table } else { 0 };
        let device = weights.device + measured.memory.device.total + streaming.total;
        let fixed = weights.host + table + measured.memory.host.state;
        let host = fixed + measured.memory.host.kv + measured.memory.host.index_raw;
        let placement = Placement {
            wish: choices.kv_host,
            in_place: caps.host_buffers,
            device: room,
            host: heaps.host.free().saturating_sub(fixed),
        };
        let fits = heaps.fit(device, host);
        Ok(Outcome { measured, device, host, streaming, fits, placement })
    }

    /// The largest multiple of [`GRAIN`] that fits: the formula of spec/kv-offload.md 7, with
    /// all that depends on the context counted.
    fn max_context(&self) -> Result<u32> {
        let Heaps { device, host, .. } = self.heaps;
        let shortest = self.at(GRAIN)?;
        if !shortest.fits {
            return Ok(0);
        }
        let token = shortest.measured.per_token().total * u64::from(self.choices.sequences);
        let bound = (device.free() + host.free()) / token.max(1) / u64::from(GRAIN);
        let most = u32::MAX / GRAIN;
        let (mut good, mut bad) = (1, u32::try_from(bound).unwrap_or(most).min(most - 1) + 1);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match self.at(middle * GRAIN) {
                Ok(outcome) if outcome.fits => good = middle,
                // Scratch that exceeds a binding does not fit either.
                Ok(_) | Err(Error::Device(_)) => bad = middle,
                Err(e) => return Err(e),
            }
        }
        Ok(good * GRAIN)
    }

    fn plan(&self, context: u32, max_context: u32, outcome: &Outcome) -> Plan {
        let Self { model, choices, heaps, weights, .. } = self;
        let MemoryReport { device, host } = outcome.measured.memory;
        let both = |part: fn(&Usage) -> u64| part(&device) + part(&host);
        let mut per_token = outcome.measured.per_token();
        if host.kv > 0 {
            per_token.host = per_token.kv + per_token.index_raw;
        }
        per_token.device = per_token.total - per_token.host;
        let heap = |name, heap: &HeapSize, planned| HeapPlan {
            name,
            size: heap.size,
            planned,
            reserve: heap.reserve,
            source: heap.source.clone(),
        };
        Plan {
            model: model.name.clone(),
            context,
            sequences: choices.sequences,
            bytes_per_token: per_token,
            bytes: Bytes {
                weights_device: weights.device,
                weights_host: weights.host,
                ngram_table: weights.table,
                kv: both(|u| u.kv),
                index_raw: both(|u| u.index_raw),
                index_pooled: both(|u| u.index_pooled),
                recurrent: both(|u| u.state) - outcome.measured.checkpoints,
                checkpoints: outcome.measured.checkpoints,
                workspace: both(|u| u.scratch + u.staging) + outcome.streaming.scratch,
                staging: outcome.streaming.staging,
                reserve: heaps.device.reserve + heaps.host.reserve,
            },
            heaps: vec![
                heap("device", &heaps.device, outcome.device),
                heap("host", &heaps.host, outcome.host),
            ],
            max_context,
            read_per_token: self.reads(context, &outcome.measured),
            fits: outcome.fits,
            notes: self.notes(context, outcome),
            placement: outcome.placement,
            memory: outcome.measured.memory,
        }
    }

    fn reads(&self, context: u32, measured: &Measured) -> Vec<Reads> {
        let MemoryReport { device, host } = measured.memory;
        let share = device.kv as f64 / (device.kv + host.kv).max(1) as f64;
        let depths = reads::DEPTHS.into_iter().filter(|depth| *depth < context);
        let read = |depth: u32| {
            let (kv, pooled) = measured.reads(depth);
            // The first tokens are on the device.
            let there = (share * f64::from(context) / f64::from(depth.max(1))).min(1.0);
            reads::Read {
                depth,
                weights: [self.weights.read_device, self.weights.read_host],
                // Read and written.
                state: 2 * measured.state_bytes(),
                kv: [(kv as f64 * there) as u64, kv - (kv as f64 * there) as u64],
                pooled,
            }
            .cost(self.choices.bandwidth)
        };
        depths.chain([context]).map(read).collect()
    }

    /// What to know besides the figures.
    fn notes(&self, context: u32, outcome: &Outcome) -> Vec<String> {
        let Self { model, choices, weights, heaps, .. } = self;
        let mut notes: Vec<_> = model.note.iter().cloned().collect();
        notes.extend(heaps.note.iter().cloned());
        let Bandwidth { device, bus } = choices.bandwidth;
        for (what, rate) in [("its own memory", device), ("host memory", bus)] {
            if let Some(rate) = rate {
                notes.push(format!("the device reads {what} at {:.1} GB/s", rate / 1e9));
            }
        }
        let reach = model.reach();
        if context > reach && outcome.fits {
            notes.push(format!(
                "memory fits, quality is unknown: the model was trained for a context of {reach}"
            ));
        }
        if weights.table > 0 && choices.ngram == Storage::Disk {
            let mib = mib(weights.table);
            notes.push(format!("the n-gram table of {mib} MiB stays on the disk"));
        }
        if outcome.measured.memory.host.kv > 0 && model.config.qwen4exp.is_none() {
            notes.push("every token reads the whole cache, the part in host memory too".into());
        }
        notes
    }
}
