//! Perplexity of a text with each type of the KV cache, or with those named:
//!
//! ```sh
//! cargo run --release --example perplexity -- models/selftest-filler.txt --types f16 q8_0 q8_0,q4_0
//! ```

use std::{fs, path::PathBuf, time::Instant};

use clap::Parser;
use engine::{Engine, EngineOptions, Error, Gguf, Result, demo, kv::KvType, text::EncodeOptions};

/// The mean is over all tokens but the first, each predicted from all before it.
#[derive(Parser)]
struct Arguments {
    /// The text.
    text: PathBuf,
    /// The model [default: the demo model].
    #[arg(short, long)]
    model: Option<PathBuf>,
    /// Tokens to take of the text.
    #[arg(short = 'n', long, default_value_t = 8192)]
    tokens: usize,
    /// Types of keys and values, or of both: `q8_0,f16` `q4_0`.
    #[arg(long, num_args = 1.., default_values = KvType::ALL.map(KvType::name))]
    types: Vec<String>,
}

fn main() -> Result<()> {
    let args = Arguments::parse();
    let text = fs::read_to_string(&args.text).map_err(|e| Error::io(&args.text, e))?;
    let gguf = match &args.model {
        Some(path) => Gguf::open(path)?,
        None => demo::open()?,
    };
    println!("{:12} {:12} {:>10} {:>10}", "keys", "values", "perplexity", "seconds");
    for types in &args.types {
        let (k, v) = types.split_once(',').unwrap_or((types, types));
        let (cache_k, cache_v) = (k.parse()?, v.parse()?);
        let options = EngineOptions { cache_k, cache_v, ..EngineOptions::default() };
        let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ())?;
        let encode = EncodeOptions { add_special: true, parse_special: false };
        let mut ids = engine.tokenizer().encode(&text, encode)?;
        ids.truncate(args.tokens);
        let start = Instant::now();
        let perplexity = perplexity(&mut engine, &ids)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{cache_k:12} {cache_v:12} {perplexity:10.4} {seconds:10.1}");
    }
    Ok(())
}

fn perplexity(engine: &mut Engine, ids: &[u32]) -> Result<f64> {
    let mut seq = engine.new_sequence()?;
    let predicted: Vec<usize> = (0..ids.len().saturating_sub(1)).collect();
    let mut total = 0.0;
    let chunk = engine.chunk();
    engine.logits_of(&mut seq, ids, chunk, &predicted, &mut |at, logits| {
        total += surprise(&logits, ids[at + 1]);
        Ok(())
    })?;
    Ok((total / predicted.len() as f64).exp())
}

/// Minus the logarithm of the probability of `token`.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - largest)
}
