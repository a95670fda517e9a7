//! `engine plan`: what would go where, before anything is loaded or downloaded.

use clap::Args;
use engine::{
    Error, Result, demo,
    gpu::{AdapterMemory, Caps, Gpu, Heap},
    kv::LONGEST,
    plan::{
        Bandwidth, Checkpoints, Choices, Context, HeapSize, Heaps, MemoryLimits, Model, Plan,
        Weights,
    },
};

use super::{
    args::{
        CacheArgs, DeviceArgs, KvHostArg, MemoryArgs, NgramStorage, parse_bytes, parse_some_layers,
        parse_staging,
    },
    output,
};

/// Flags of `engine plan`.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// GGUF file, of which only the header is read, or the name of a well-known model [default:
    /// the demo model]
    #[arg(short, long, value_name = "FILE|NAME", env = "LLAMA_ARG_MODEL")]
    model: Option<String>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens of one sequence; 0: as many as the model was trained for; max: as many as fit
    #[arg(short, long, value_name = "N|max", default_value = "0", value_parser = parse_context)]
    #[arg(env = "LLAMA_ARG_CTX_SIZE")]
    ctx_size: Context,
    /// Sequences side by side
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Most prompt tokens processed at once
    #[arg(long, value_name = "N", default_value_t = 512, env = "LLAMA_ARG_UBATCH")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ubatch_size: u32,
    #[command(flatten)]
    cache: CacheArgs,
    /// Which memory keys and values go to: the device's and then the host's, the host's, or the
    /// device's only
    #[arg(long, value_enum, default_value_t = KvHostArg::Auto, value_name = "WHERE")]
    kv_host: KvHostArg,
    /// Bytes through which a prompt streams keys and values that lie in host memory
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = parse_staging)]
    kv_staging: u64,
    /// Layers, from the first, whose experts are in host memory
    #[arg(long, alias = "n-cpu-moe", value_name = "N|all", default_value = "0", value_parser = parse_some_layers)]
    experts_host: u32,
    /// Where rows of an n-gram table are read from: the file, or memory that holds all of it
    #[arg(long, value_enum, default_value_t = NgramStorage::Disk, value_name = "WHERE")]
    ngram: NgramStorage,
    /// With a name: the type of the weights, or the size of the file [default: Q4_K_M]
    #[arg(long, value_name = "TYPE|BYTES", value_parser = parse_weights)]
    weights: Option<Weights>,
    /// Bytes for checkpoints of all sequences together, as for the server
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    checkpoint_memory: u64,
    /// Most checkpoints of a sequence, likewise
    #[arg(long, value_name = "N", default_value_t = 32)]
    ctx_checkpoints: u16,
    #[command(flatten)]
    memory: MemoryArgs,
    /// What the device reads from its own memory, in GB (10^9 bytes) a second [default: what this
    /// machine's does, measured]
    #[arg(long, value_name = "GB/S", value_parser = parse_rate)]
    device_bandwidth: Option<f64>,
    /// What the device reads from host memory, likewise
    #[arg(long, value_name = "GB/S", value_parser = parse_rate)]
    bus_bandwidth: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the plan; then it is an error if it does not fit, so that a script can tell.
pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let model = match &args.model {
        None => Model::of_file(&demo::open()?, "the demo model")?,
        Some(model) => Model::find(model, args.weights)?,
    };
    let (caps, heaps) = args.machine()?;
    let plan = Plan::new(&model, &args.choices(args.bandwidth()), &caps, &heaps)?;
    match args.json {
        true => output::json(&plan)?,
        false => output::result(&plan)?,
    }
    plan.check()
}

impl PlanArgs {
    fn choices(&self, bandwidth: Bandwidth) -> Choices {
        let (cache_k, cache_v) = self.cache.types();
        Choices {
            context: self.ctx_size,
            sequences: self.parallel,
            cache_k,
            cache_v,
            kv_host: self.kv_host.into(),
            kv_staging: self.kv_staging,
            chunk: self.ubatch_size,
            experts_host: self.experts_host,
            ngram: self.ngram.into(),
            checkpoints: Checkpoints {
                memory: self.checkpoint_memory,
                count: self.ctx_checkpoints.into(),
            },
            bandwidth,
        }
    }

    /// What is given, or for this machine what its device does.
    fn bandwidth(&self) -> Bandwidth {
        let given = Bandwidth { device: self.device_bandwidth, bus: self.bus_bandwidth };
        if self.is_elsewhere() || (given.device.is_some() && given.bus.is_some()) {
            return given;
        }
        let Ok(gpu) = Gpu::open(&self.device.options()) else { return given };
        Bandwidth {
            device: given.device.or_else(|| gpu.bandwidth(Heap::Device).ok()),
            bus: given.bus.or_else(|| gpu.bandwidth(Heap::Host).ok()),
        }
    }

    /// Whether another machine is meant: both its sizes are given, and no device of this one.
    fn is_elsewhere(&self) -> bool {
        let MemoryLimits { device, host, .. } = self.memory.limits();
        device.is_some() && host.is_some() && self.device.device.is_none()
    }

    fn machine(&self) -> Result<(Caps, Heaps)> {
        let limits = self.memory.limits();
        if let (true, Some(device), Some(host)) = (self.is_elsewhere(), limits.device, limits.host)
        {
            let device = HeapSize::device(device, "given").keeping(limits.reserve);
            return Ok((Caps::usual(), Heaps::apart(device, HeapSize::host(host, "given"))));
        }
        let adapter = AdapterMemory::find(self.device.device.as_deref())?;
        let heaps = Heaps::of(&adapter, limits)?;
        Ok((adapter.caps, heaps))
    }
}

fn parse_context(text: &str) -> std::result::Result<Context, String> {
    match text {
        "max" => Ok(Context::Max),
        "0" => Ok(Context::Trained),
        _ => match text.parse() {
            Ok(tokens) if tokens <= LONGEST => Ok(Context::Tokens(tokens)),
            _ => Err(format!("expected a number up to {LONGEST}, or max")),
        },
    }
}

fn parse_weights(text: &str) -> std::result::Result<Weights, String> {
    match parse_bytes(text) {
        Ok(bytes) => Ok(Weights::Bytes(bytes)),
        Err(_) => text.parse().map_err(|e: Error| format!("{e}, or a number of bytes")),
    }
}

/// Bytes a second.
fn parse_rate(text: &str) -> std::result::Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.map(|rate| rate * 1e9).ok_or_else(|| "expected a number above 0".into())
}
