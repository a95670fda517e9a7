//! `engine logits`: logits at given positions of a token list, as safetensors, for comparison
//! with other implementations.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use engine::{Error, Result, plan::Checkpoints, replace::replace};
use safetensors::{Dtype, tensor::TensorView};

use super::{args::ModelArgs, output, progress, report, session};

/// That of `run`, without the default.
const MODEL_HELP: &str = "GGUF file; of a model in several files, any one";

/// Flags of `engine logits`.
#[derive(Args, Debug)]
// Logits are for comparing models: which one is not guessed.
#[command(mut_arg("model", |model| model.required(true).help(MODEL_HELP)))]
pub(super) struct LogitsArgs {
    /// Token ids to process
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Tokens processed at once; with 1 every token is a decode step [default: --ubatch-size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunk: Option<u32>,
    /// Positions, from 0, to give the logits of
    #[arg(long, value_name = "all|last|0,5,9", default_value = "all")]
    positions: Positions,
    /// File to write: `logits` f32 [positions, vocab] and `positions` i64
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Clone, Debug, PartialEq)]
enum Positions {
    All,
    Last,
    List(Vec<usize>),
}

impl FromStr for Positions {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "last" => Ok(Self::Last),
            list => {
                let parsed = list.split(',').map(str::parse).collect::<std::result::Result<_, _>>();
                parsed.map(Self::List).map_err(|_| "expected all, last or positions: 0,5,9".into())
            }
        }
    }
}

impl Positions {
    /// The positions among `count` tokens, rising and each once.
    fn resolve(&self, count: usize) -> Result<Vec<usize>> {
        let mut list = match self {
            Self::All => (0..count).collect(),
            Self::Last => vec![count - 1],
            Self::List(list) => list.clone(),
        };
        list.sort_unstable();
        list.dedup();
        match list.last() {
            Some(&last) if last >= count => Err(Error::Usage(format!(
                "--positions names {last}, but the {count} tokens have positions 0 to {}",
                count - 1
            ))),
            _ => Ok(list),
        }
    }
}

/// Runs `engine logits`.
pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    let positions = args.positions.resolve(args.tokens.len())?;
    let mut engine = session::load(&args.model, &args.model.options(1, Checkpoints::default()))?;
    session::check_tokens(&engine, &args.tokens)?;
    let vocab = engine.config().n_vocab as usize;
    let mut sequence = engine.new_sequence()?;
    let bar = progress::prefill(args.tokens.len());
    let mut logits: Vec<f32> = Vec::with_capacity(positions.len() * vocab);
    let chunk = args.chunk.unwrap_or_else(|| engine.chunk());
    engine.logits_of(&mut sequence, &args.tokens, chunk, &positions, &mut |at, row| {
        logits.extend(row);
        bar.set_position(at as u64 + 1);
        Ok(())
    })?;
    bar.finish_and_clear();
    write(&args.output, &logits, &positions, vocab)?;
    if let Some(profile) = engine.profile() {
        output::note(report::profile(profile, engine.attention_reads()));
    }
    Ok(())
}

/// Replaces what is at `path`, so that no half-written file is ever found there; but writes into
/// what is there and no file, such as a pipe, which must not be replaced by one.
fn write(path: &Path, logits: &[f32], positions: &[usize], vocab: usize) -> Result<()> {
    let ids: Vec<i64> = positions.iter().map(|&position| position as i64).collect();
    let view = |dtype, shape, bytes| {
        TensorView::new(dtype, shape, bytes)
            .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))
    };
    let logits = view(Dtype::F32, vec![ids.len(), vocab], bytemuck::cast_slice(logits))?;
    let positions = view(Dtype::I64, vec![ids.len()], bytemuck::cast_slice(&ids))?;
    let tensors = HashMap::from([("logits", logits), ("positions", positions)]);
    let bytes = safetensors::serialize(&tensors, None)
        .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return fs::write(path, bytes).map_err(|e| Error::io(path, e));
    }
    replace(path, &bytes)
}
