//! `engine bench`: how fast a model runs (spec/cli-and-server.md 6).

use std::path::PathBuf;

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
    output,
    ranges::Numbers,
};

/// Flags of `engine bench`. Lists are separated by commas; numbers may be ranges.
#[derive(Args, Debug)]
pub(super) struct BenchArgs {
    /// GGUF files; of a model in several files, any one [default: the demo model]
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    model: Vec<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens of prompts; 0: none. Numbers, and ranges like 128-512+128 or 128-1024*2
    #[arg(short = 'p', long, value_name = "N,..", default_value = "512")]
    n_prompt: Numbers,
    /// Tokens to generate, one by one; 0: none
    #[arg(short = 'n', long, value_name = "N,..", default_value = "128")]
    n_gen: Numbers,
    /// A prompt and generation timed together, once or more often: 512,128 for example
    #[arg(long, value_name = "PP,TG", value_parser = parse_pair)]
    prompt_gen: Vec<Kind>,
    /// Tokens in the sequence before
    #[arg(short = 'd', long, value_name = "N,..", default_value = "0")]
    n_depth: Numbers,
    /// Timed runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Upper bounds of --ubatch-size
    #[arg(short, long, value_name = "N,..", default_value = "2048")]
    batch_size: Numbers,
    /// Prompt tokens processed at once
    #[arg(long, value_name = "N,..", default_value = "512")]
    ubatch_size: Numbers,
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
    /// What an earlier run wrote with -o json: rows whose tokens differ from it are invalid
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Say what would be measured and how much memory it takes, and load nothing
    #[arg(long)]
    dry_run: bool,
    /// How to print the rows; jsonl: an object a line, svg: speed by depth, drawn
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Accepted for llama.cpp's sake: all layers run on the device
    #[arg(long, alias = "gpu-layers", value_name = "N|auto|all", value_parser = parse_layers)]
    n_gpu_layers: Option<u32>,
    /// Layers, from the first, whose experts are in host memory, read in place by the device
    #[arg(long, alias = "n-cpu-moe", value_name = "N|all", default_value = "0")]
    #[arg(value_parser = parse_some_layers)]
    experts_host: u32,
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

/// Prints the rows; it is a failure if one is invalid.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let options = args.options()?;
    let mut models: Vec<(Subject, Vec<Row>)> = Vec::new();
    let mut measure = |gguf: &Gguf, name: &str| {
        if args.dry_run {
            let outlook = Outlook::new(gguf, name, &options)?;
            output::result(&outlook)?;
            return outlook.check();
        }
        let (subject, mut rows) = bench::run(gguf, name, &options, &mut |next| output::note(next))?;
        if let Some(path) = &args.reference {
            let stored = Stored::read(path, &subject)?;
            rows.iter_mut().for_each(|row| row.check(&stored));
        }
        models.push((subject, rows));
        Result::Ok(())
    };
    if args.model.is_empty() {
        measure(&demo::open()?, "the demo model")?;
    }
    for path in &args.model {
        measure(&Gguf::open(path)?, &path.display().to_string())?;
    }
    if args.dry_run {
        return Ok(());
    }
    if args.n_gpu_layers.is_some() {
        output::note("--n-gpu-layers: all layers run on the device");
    }
    let rows: Vec<_> =
        models.iter().flat_map(|(subject, rows)| rows.iter().map(move |r| (subject, r))).collect();
    print(args.output, &rows)?;
    match rows.iter().filter(|(_, row)| row.trial.fault.is_some()).count() {
        0 => Ok(()),
        n => Err(Error::Device(format!("{n} of {} rows are invalid", rows.len()))),
    }
}

fn print(format: Format, rows: &[(&Subject, &Row)]) -> Result<()> {
    let objects = || rows.iter().map(|(subject, row)| bench::json(subject, row));
    match format {
        Format::Md => output::result(bench::markdown(rows)),
        Format::Csv => output::result(bench::csv(rows)),
        Format::Sql => output::result(bench::sql(rows)),
        Format::Svg => output::result(bench::svg(rows)),
        Format::Json => output::json(&objects().collect::<Vec<_>>()),
        Format::Jsonl => {
            output::result(objects().map(|row| format!("{row}\n")).collect::<String>())
        }
    }
}

impl BenchArgs {
    fn options(&self) -> Result<Options> {
        if self.batch_size.0.contains(&0) || self.ubatch_size.0.contains(&0) {
            return Err(Error::Usage("--batch-size and --ubatch-size are at least 1".into()));
        }
        let kv_host: Vec<KvHost> = self.kv_host.iter().map(|wish| (*wish).into()).collect();
        Ok(Options {
            tests: self.tests()?,
            settings: Setting::all(
                &self.batch_size.0,
                &self.ubatch_size.0,
                &self.cache_type_k,
                &self.cache_type_v,
                &kv_host,
            ),
            repetitions: self.repetitions,
            synthetic_history: self.synthetic_history,
            engine: EngineOptions {
                device: self.device.options(),
                memory: self.memory.limits(),
                experts_host: self.experts_host,
                ngram: self.ngram.into(),
                fit: true,
                ..EngineOptions::default()
            },
        })
    }

    /// Prompts and generation at every depth.
    fn tests(&self) -> Result<Vec<Test>> {
        let mut tests = Vec::new();
        for &depth in &self.n_depth.0 {
            let prompts = self.n_prompt.0.iter().map(|n| Kind::Prompt(*n));
            let kinds = prompts.chain(self.n_gen.0.iter().map(|n| Kind::Generate(*n)));
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
