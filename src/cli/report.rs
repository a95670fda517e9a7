//! What is told about a run afterwards: the JSON object of `--json`, the line of timings, and the
//! table of `--profile`.

use std::{fmt::Write, time::Duration};

use engine::{
    Result,
    generate::FinishReason,
    gpu::{AdapterReport, MemoryReport, Profile, Usage},
    kv::{AttentionReads, KvStats},
};
use serde::Serialize;

use super::{
    host_memory::HostMemory,
    session::{Completion, Session},
};

/// The object that `--json` prints.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    tokens: &'a [u32],
    text: &'a str,
    prompt_tokens: usize,
    /// Of them, those that a session file held.
    cached_tokens: usize,
    generated_tokens: usize,
    finish_reason: FinishReason,
    seed: u64,
    timings: Timings,
    memory: Memory,
    attention: Attention,
    kv: KvStats,
    paths: Vec<String>,
    device: &'a AdapterReport,
}

/// Bytes by heap and kind.
#[derive(Serialize)]
struct Memory {
    device: Usage,
    /// What the device reads in place.
    host: Usage,
    /// Nothing where the system does not tell.
    process: Option<HostMemory>,
}

/// What attention has read since the model was loaded.
#[derive(Serialize)]
struct Attention {
    #[serde(flatten)]
    reads: AttentionReads,
    average_tokens: f64,
}

#[derive(Serialize)]
struct Timings {
    load: Load,
    prefill: Phase,
    decode: Phase,
}

#[derive(Serialize)]
struct Load {
    ms: f64,
}

#[derive(Serialize)]
struct Phase {
    ms: f64,
    /// Nothing where no token or no time makes a rate meaningless.
    tok_s: Option<f64>,
}

impl Phase {
    fn new(time: Duration, tokens: usize) -> Self {
        let seconds = time.as_secs_f64();
        let tok_s = (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds);
        Self { ms: seconds * 1e3, tok_s }
    }
}

impl Timings {
    fn new(load: Duration, done: &Completion) -> Self {
        Self {
            load: Load { ms: load.as_secs_f64() * 1e3 },
            prefill: Phase::new(done.prefill, done.prompt_tokens - done.reused),
            // The first token comes from the prompt's logits.
            decode: Phase::new(done.decode, done.tokens.len().saturating_sub(1)),
        }
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(session: &'a mut Session, done: &'a Completion) -> Result<Self> {
        let kv = session.engine.kv_stats()?;
        let session = &*session;
        let reads = session.engine.attention_reads();
        let MemoryReport { device, host } = session.engine.memory();
        Ok(Self {
            tokens: &done.tokens,
            text: &done.text,
            prompt_tokens: done.prompt_tokens,
            cached_tokens: done.reused,
            generated_tokens: done.tokens.len(),
            finish_reason: done.finish,
            seed: done.seed,
            timings: Timings::new(session.load, done),
            memory: Memory { device, host, process: HostMemory::now() },
            attention: Attention { reads, average_tokens: reads.average_tokens() },
            kv,
            paths: session.engine.paths(),
            device: session.engine.device().0,
        })
    }
}

/// One line about a completion.
pub(super) fn summary(load: Duration, done: &Completion) -> String {
    let Timings { load, prefill, decode } = Timings::new(load, done);
    let rate = |phase: &Phase| phase.tok_s.map_or_else(String::new, |r| format!(", {r:.1} tok/s"));
    let reused = match done.reused {
        0 => String::new(),
        n => format!(" ({n} reused)"),
    };
    format!(
        "load {:.0} ms | prompt {} tokens{reused}, {:.0} ms{} | generated {} tokens, {:.0} ms{} | \
         {} | seed {}",
        load.ms,
        done.prompt_tokens,
        prefill.ms,
        rate(&prefill),
        done.tokens.len(),
        decode.ms,
        rate(&decode),
        match done.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        },
        done.seed,
    )
}

/// The traffic of keys and values.
pub(super) fn kv(stats: &KvStats) -> String {
    let KvStats { decode, prefill, .. } = stats;
    let ratio = prefill.ratio.map_or_else(String::new, |r| format!(", 1/{r:.1} of that"));
    let time = decode
        .gather_ms
        .zip(decode.gb_per_s)
        .map_or_else(String::new, |(ms, rate)| format!(" in {ms:.3} ms ({rate:.2} GB/s)"));
    let planned = |bytes: Option<u64>| {
        bytes.map_or_else(String::new, |bytes| format!(" (of {bytes} planned)"))
    };
    format!(
        "kv: {} tokens of {} bytes in {} attention layers, {} of them sparse; {} bytes{} of keys, \
         values and index keys in host memory, {}{} of pooled keys on the device\n\
         kv decode: {} steps, {:.1} tokens a layer on average, {} at most; {} bytes gathered, {} of \
         them from host memory, {} a step{time}, and {} of pooled keys\n\
         kv prefill: {} chunks, {} pieces copied; {} bytes read by queries one by one, {} of them \
         in host memory, {} copied from there and {} read in place{ratio}\n\
         kv: {} bytes written to host memory",
        stats.ctx_tokens,
        stats.row_bytes,
        stats.layers,
        stats.layers_qsa,
        stats.host_resident,
        planned(stats.host_planned),
        stats.device_pooled,
        planned(stats.device_pooled_planned),
        decode.steps,
        decode.tokens_selected_avg,
        decode.tokens_selected_max,
        decode.bytes_gathered,
        decode.bytes_gathered_host,
        decode.bytes_per_step,
        decode.pool_scan_bytes,
        prefill.chunks,
        prefill.segments,
        prefill.bytes_naive,
        prefill.bytes_naive_host,
        prefill.bytes_streamed,
        prefill.bytes_in_place,
        stats.bytes_written_host,
    )
}

/// Time per op, the longest first; then what attention has read.
pub(super) fn profile(profile: &Profile, reads: AttentionReads) -> String {
    let total = profile.ops.values().fold(0.0, |sum, op| sum + op.ns);
    let mut rows: Vec<_> = profile.ops.iter().collect();
    rows.sort_by(|a, b| b.1.ns.total_cmp(&a.1.ns).then(a.0.cmp(b.0)));
    let mut table = format!("{:<32} {:>9} {:>12} {:>7}\n", "op", "count", "ms", "share");
    let mut row = |name: &str, count: u64, ns: f64| {
        let share = if total > 0.0 { 100.0 * ns / total } else { 0.0 };
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{name:<32} {count:>9} {:>12.3} {share:>6.1}%", ns / 1e6);
    };
    for (name, op) in rows {
        row(name, op.count, op.ns);
    }
    row("total", profile.ops.values().map(|op| op.count).sum(), total);
    let _ = writeln!(
        table,
        "attention: {:.1} tokens a query on average, {} at most, of {} queries {} dense, {} sparse; \
         {} bytes of keys and values, {} of pooled keys",
        reads.average_tokens(),
        reads.most_tokens,
        reads.full_queries + reads.sparse_queries,
        reads.dense_queries,
        reads.sparse_queries,
        reads.kv_bytes,
        reads.pooled_bytes,
    );
    table
}
