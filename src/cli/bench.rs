//! `engine bench`: how fast a model runs (spec/cli-and-server.md 6).

use std::{io, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use engine::{
    EngineOptions, Error, Gguf, Result,
    bench::{self, Kind, Options, Outlook, Row, Setting, Stored, Subject, Test},
    demo,
    kv::{KvHost, KvType},
};

use super::{
    args::{
        DeviceArgs, KvHostArg, MemoryArgs, NgramStorage, cache_types, parse_layers,
        parse_some_layers,
    },
    devices, output,
    ranges::Numbers,
};

/// Flags of `engine bench`. Lists are separated by commas, or the flag is repeated; numbers may be
/// ranges.
#[derive(Args, Debug)]
pub(super) struct BenchArgs {
    /// GGUF files; of a model in several files, any one. The first is measured before and after
    /// each other one [default: the demo model]
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    model: Vec<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens of prompts; 0: none. Numbers, and ranges like 128-512+128 or 128-1024*2
    #[arg(short = 'p', long, value_name = "N,..", default_value = "512")]
    n_prompt: Vec<Numbers>,
    /// Tokens to generate, one by one; 0: none
    #[arg(short = 'n', long, value_name = "N,..", default_value = "128")]
    n_gen: Vec<Numbers>,
    /// A prompt and generation timed together, once or more often: 512,128 for example
    #[arg(long, value_name = "PP,TG", value_parser = parse_pair)]
    prompt_gen: Vec<Kind>,
    /// Tokens in the sequence before
    #[arg(short = 'd', long, value_name = "N,..", default_value = "0")]
    n_depth: Vec<Numbers>,
    /// Timed runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Upper bounds of --ubatch-size
    #[arg(short, long, value_name = "N,..", default_value = "2048")]
    batch_size: Vec<Numbers>,
    /// Prompt tokens processed at once
    #[arg(long, value_name = "N,..", default_value = "512")]
    ubatch_size: Vec<Numbers>,
    /// Number formats of cached keys
    #[arg(long, value_name = "TYPE,..", value_parser = cache_types(), value_delimiter = ',')]
    #[arg(default_values_t = [KvType::F16])]
    cache_type_k: Vec<KvType>,
    /// Number formats of cached values
    #[arg(long, value_name = "TYPE,..", value_parser = cache_types(), value_delimiter = ',')]
    #[arg(default_values_t = [KvType::F16])]
    cache_type_v: Vec<KvType>,
    /// Which memory keys and values go to
    #[arg(
        long,
        value_enum,
        value_name = "WHERE,..",
        value_delimiter = ',',
        default_value = "auto"
    )]
    kv_host: Vec<KvHostArg>,
    /// Fill depths with random state, at once, instead of a prompt
    #[arg(long)]
    synthetic_history: bool,
    /// Seconds to wait before each test
    #[arg(long, value_name = "S", default_value_t = 0)]
    delay: u32,
    /// List the devices and measure nothing
    #[arg(long)]
    list_devices: bool,
    /// What an earlier run wrote with -o json: rows whose tokens differ from it are invalid, and it
    /// is a failure if it has none of the rows
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Say what would be measured and how much memory it takes, and load nothing
    #[arg(long)]
    dry_run: bool,
    /// How to print the rows; jsonl: an object a line, svg: speed by depth, drawn
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// How to print them on standard error as well
    #[arg(long, value_enum, value_name = "FORMAT")]
    output_err: Option<Format>,
    /// Accepted for llama.cpp's sake: all layers run on the device
    #[arg(long, alias = "gpu-layers", value_name = "N|auto|all,..", value_parser = parse_layers)]
    #[arg(value_delimiter = ',')]
    n_gpu_layers: Vec<u32>,
    /// Layers, from the first, whose experts are in host memory, read in place by the device
    #[arg(long, alias = "n-cpu-moe", value_name = "N|all,..", default_value = "0")]
    #[arg(value_parser = parse_some_layers, value_delimiter = ',')]
    experts_host: Vec<u32>,
    /// Where rows of an n-gram table are read from: the file, or memory that holds all of it
    #[arg(long, value_enum, default_value_t = NgramStorage::Disk, value_name = "WHERE")]
    ngram: NgramStorage,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// How rows are printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Md,
    Json,
    Jsonl,
    Csv,
    Sql,
    Svg,
}

/// Prints the rows; it is a failure if one is invalid, or if a reference has none of them.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    if args.list_devices {
        return devices::list(args.device.device.as_deref());
    }
    let options = args.options()?;
    let models = args.models()?;
    if args.dry_run {
        let outlook = Outlook::new(&models, &options)?;
        output::result(&outlook)?;
        return outlook.check();
    }
    let reference = args.reference.as_deref().map(Stored::read).transpose()?;
    let mut note = |next: &str| output::note(next);
    let rows = bench::run(&models, &options, reference.as_ref(), &mut note)?;
    if !args.n_gpu_layers.is_empty() {
        output::note("--n-gpu-layers: all layers run on the device");
    }
    let pairs: Vec<_> = rows.iter().map(|(subject, row)| (subject, row)).collect();
    if let Some(format) = args.output_err {
        output::note(text(format, &pairs)?.trim_end());
    }
    output::result(text(args.output, &pairs)?)?;
    args.verdict(&rows)
}

/// `rows` as a whole.
fn text(format: Format, rows: &[(&Subject, &Row)]) -> Result<String> {
    let objects = || rows.iter().map(|(subject, row)| bench::json(subject, row));
    Ok(match format {
        Format::Md => bench::markdown(rows),
        Format::Csv => bench::csv(rows),
        Format::Sql => bench::sql(rows),
        Format::Svg => bench::svg(rows),
        Format::Json => output::json_text(&objects().collect::<Vec<_>>())?,
        Format::Jsonl => objects().map(|row| format!("{row}\n")).collect(),
    })
}

impl BenchArgs {
    /// The models with their names.
    fn models(&self) -> Result<Vec<(String, Gguf)>> {
        if self.model.is_empty() {
            return Ok(vec![("the demo model".into(), demo::open()?)]);
        }
        let open = |path: &PathBuf| Ok((path.display().to_string(), Gguf::open(path)?));
        self.model.iter().map(open).collect()
    }

    /// Whether `rows` are valid, and checked at all where they were to be.
    fn verdict(&self, rows: &[(Subject, Row)]) -> Result<()> {
        let count = |is: fn(&Row) -> bool| rows.iter().filter(|(_, row)| is(row)).count();
        let (all, invalid) = (rows.len(), count(|row| row.trial.fault.is_some()));
        let unchecked = count(|row| row.checked == Some(false));
        if let Some(path) = self.reference.as_ref().filter(|_| unchecked > 0) {
            let file = path.display();
            output::note(format_args!(
                "{unchecked} of {all} rows are not in {file} and not checked"
            ));
            if unchecked == all && invalid == 0 {
                let none = io::Error::other("none of the rows is in it, so nothing was checked");
                return Err(Error::io(path, none));
            }
        }
        match invalid {
            0 => Ok(()),
            n => Err(Error::Device(format!("{n} of {all} rows are invalid"))),
        }
    }

    fn options(&self) -> Result<Options> {
        let (batch, ubatch) = (all(&self.batch_size), all(&self.ubatch_size));
        if batch.contains(&0) || ubatch.contains(&0) {
            return Err(Error::Usage("--batch-size and --ubatch-size are at least 1".into()));
        }
        let kv_host: Vec<KvHost> = self.kv_host.iter().map(|wish| (*wish).into()).collect();
        Ok(Options {
            tests: self.tests()?,
            settings: Setting::all(
                &batch,
                &ubatch,
                &self.cache_type_k,
                &self.cache_type_v,
                &kv_host,
                &self.experts_host,
            ),
            repetitions: self.repetitions,
            synthetic_history: self.synthetic_history,
            delay: Duration::from_secs(self.delay.into()),
            engine: EngineOptions {
                device: self.device.options(),
                memory: self.memory.limits(),
                ngram: self.ngram.into(),
                fit: true,
                ..EngineOptions::default()
            },
        })
    }

    /// Prompts and generation at every depth.
    fn tests(&self) -> Result<Vec<Test>> {
        let mut tests = Vec::new();
        let (prompts, generations) = (all(&self.n_prompt), all(&self.n_gen));
        for depth in all(&self.n_depth) {
            let prompts = prompts.iter().map(|n| Kind::Prompt(*n));
            let kinds = prompts.chain(generations.iter().map(|n| Kind::Generate(*n)));
            let kinds = kinds.chain(self.prompt_gen.iter().copied());
            let all = kinds.map(|kind| Test { kind, depth });
            tests.extend(all.filter(|test| test.tokens() > 0));
        }
        match tests.is_empty() {
            true => Err(Error::Usage("nothing to measure: --n-prompt and --n-gen are 0".into())),
            false => Ok(tests),
        }
    }
}

/// The numbers of a flag that was given several times.
fn all(lists: &[Numbers]) -> Vec<u32> {
    lists.iter().flat_map(|list| list.0.iter().copied()).collect()
}

/// `512,128`: a prompt, then generation; 0 of one leaves the other.
fn parse_pair(text: &str) -> std::result::Result<Kind, String> {
    let numbers = text.split_once(',').and_then(|(pp, tg)| pp.parse().ok().zip(tg.parse().ok()));
    match numbers {
        Some((prompt, 0)) => Ok(Kind::Prompt(prompt)),
        Some((0, generate)) => Ok(Kind::Generate(generate)),
        Some((prompt, generate)) => Ok(Kind::Both(prompt, generate)),
        None => Err("expected two numbers like 512,128".into()),
    }
}
