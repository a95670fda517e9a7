//! Measures how fast rows of a model's n-gram table can be read:
//!
//! ```sh
//! cargo run --release --example ngram_reads -- MODEL.gguf
//! ```
//!
//! The first run after the file was dropped from the system's cache is the cold one.

use std::{path::PathBuf, time::Instant};

use clap::Parser;
use engine::{
    Gguf, Result,
    ngram::{NgramTable, Storage},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Reads random rows as decoding does (one token's after the other) and as prefill does.
#[derive(Parser)]
struct Arguments {
    /// The model, any part of it.
    model: PathBuf,
    /// Rows of a token.
    #[arg(long, default_value_t = 16)]
    heads: usize,
    /// Tokens of a prefill chunk.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// Rows to read each way.
    #[arg(long, default_value_t = 65_536)]
    rows: usize,
    /// Which rows.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the table in memory.
    #[arg(long)]
    ram: bool,
}

fn main() -> Result<()> {
    let args = Arguments::parse();
    let storage = if args.ram { Storage::Ram } else { Storage::Disk };
    let start = Instant::now();
    let table = NgramTable::open(&Gguf::open(&args.model)?, storage)?;
    println!(
        "{} rows of {} values, {} bytes resident, opened in {:.3} s",
        table.rows(),
        table.width(),
        table.resident_bytes(),
        start.elapsed().as_secs_f64()
    );
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    for (what, length) in [("decode", args.heads), ("prefill", args.heads * args.chunk)] {
        let mut times = Vec::new();
        let mut read = 0;
        while read < args.rows {
            let rows: Vec<u64> = (0..length).map(|_| rng.random_range(0..table.rows())).collect();
            let start = Instant::now();
            table.request(&rows)?.wait()?;
            times.push(start.elapsed().as_secs_f64());
            read += length;
        }
        let total: f64 = times.iter().sum();
        times.sort_by(f64::total_cmp);
        println!(
            "{what}: {:.0} rows/s; a request of {length} takes {:.3} ms, 1 in 100 over {:.3} ms",
            read as f64 / total,
            times[times.len() / 2] * 1e3,
            times[times.len() * 99 / 100] * 1e3
        );
    }
    Ok(())
}
