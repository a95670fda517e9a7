//! Decode rate by depth, after a synthetic history, of the demo model and of the files named:
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench decode_depth -- synthetic-q4_k.gguf
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.) With
//! `--kv-host` keys and values are in host memory: `-- --kv-host --depths 2048,32768,262144,1048576,3145728`. Each round decodes at
//! every depth in turn, so that what disturbs a while of the run disturbs all depths; ratios are of
//! the same round.

use std::{path::PathBuf, time::Instant};

use clap::Parser;
use engine::{
    Engine, EngineOptions, Result, demo,
    gpu::MemoryReport,
    kv::{AttentionReads, KvHost},
    sequence::Sequence,
};

/// Decode rate by depth.
#[derive(Parser)]
struct Arguments {
    /// Model files; the demo model comes first.
    files: Vec<PathBuf>,
    /// Tokens of history.
    #[arg(long, value_delimiter = ',', default_value = "0,4096,32768,262144")]
    depths: Vec<u32>,
    /// Samples at each depth.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Tokens a sample.
    #[arg(long, default_value_t = 16)]
    tokens: u32,
    /// Keys and values in host memory.
    #[arg(long)]
    kv_host: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let deepest = arguments.depths.iter().max().copied().unwrap_or_default();
    let warm_up = arguments.tokens;
    let tokens = warm_up + arguments.tokens * arguments.rounds as u32;
    let options = EngineOptions {
        context: Some(deepest + tokens),
        kv_host: if arguments.kv_host { KvHost::On } else { KvHost::Auto },
        ..EngineOptions::default()
    };
    let mut engine = Engine::from_gguf(&demo::open()?, &options, &mut |_, _| ())?;
    let device = engine.device().0;
    println!("{}, {}", device.name, device.driver);
    println!("demo model");
    measure(&mut engine, &arguments)?;
    for file in &arguments.files {
        println!("{}", file.display());
        measure(&mut Engine::load(file, &options, &mut |_, _| ())?, &arguments)?;
    }
    Ok(())
}

/// A sequence at a depth, what its tokens read, and the seconds a token of its samples.
struct Depth {
    depth: u32,
    seq: Sequence,
    reads: AttentionReads,
    seconds: Vec<f64>,
}

fn measure(engine: &mut Engine, arguments: &Arguments) -> Result<()> {
    let mut depths = Vec::new();
    for &depth in &arguments.depths {
        let mut seq = engine.new_sequence()?;
        engine.synthetic_history(&mut seq, depth)?;
        let before = engine.attention_reads();
        decode(engine, &mut seq, arguments.tokens)?;
        let reads = engine.attention_reads().since(&before);
        depths.push(Depth { depth, seq, reads, seconds: Vec::new() });
    }
    for _ in 0..arguments.rounds {
        for Depth { seq, seconds, .. } in &mut depths {
            seconds.push(decode(engine, seq, arguments.tokens)?);
        }
    }
    // A depth of at least 4096 is past the budget of every model.
    let base = depths.iter().position(|d| d.depth >= 4096).unwrap_or_default();
    for Depth { depth, seq, reads, seconds } in &depths {
        let ratios = seconds.iter().zip(&depths[base].seconds).map(|(a, b)| a / b);
        let [slow, median, fast] = spread(seconds.iter().map(|s| 1.0 / s));
        let [low, ratio, high] = spread(ratios);
        println!(
            "  at {depth:7}: {median:8.2} tok/s ({slow:.2} to {fast:.2}), time {ratio:.3} \
             ({low:.3} to {high:.3}) of that at {}, {} dispatches, {} bytes of keys and values, {} \
             of pooled keys",
            depths[base].depth,
            seq.dispatches_per_token().unwrap_or_default(),
            reads.kv_bytes / u64::from(arguments.tokens),
            reads.pooled_bytes / u64::from(arguments.tokens),
        );
    }
    let MemoryReport { device, host } = engine.memory();
    let keys = [device.kv + device.index_raw, host.kv + host.index_raw, device.index_pooled];
    let [on_device, on_host, pooled] = keys.map(|bytes| bytes >> 20);
    println!(
        "  keys, values and index keys: {on_device} MiB on the device, {on_host} MiB in host memory, \
         {pooled} MiB of pooled keys"
    );
    Ok(())
}

/// Seconds a token.
fn decode(engine: &mut Engine, seq: &mut Sequence, tokens: u32) -> Result<f64> {
    let start = Instant::now();
    let mut token = 1;
    for _ in 0..tokens {
        engine.decode(seq, token)?;
        token = engine.argmax(seq)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(tokens))
}

/// The least, the median and the largest.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    [0, last / 2, last].map(|i| values.get(i).copied().unwrap_or(f64::NAN))
}
