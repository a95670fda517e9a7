//! A plan as text for people.

use super::{HeapPlan, Plan, mib};
use std::fmt;

/// Characters of a bar.
const BAR: usize = 40;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, context, sequences, .. } = self;
        let many = if *sequences == 1 { "sequence" } else { "sequences" };
        writeln!(f, "{model}: {sequences} {many} of {context} tokens\n")?;
        let b = &self.bytes;
        for (what, bytes) in [
            ("weights on the device", b.weights_device),
            ("weights in host memory", b.weights_host),
            ("n-gram table", b.ngram_table),
            ("keys and values", b.kv),
            ("index keys of tokens", b.index_raw),
            ("index keys of blocks", b.index_pooled),
            ("recurrent state", b.recurrent),
            ("checkpoints of it", b.checkpoints),
            ("workspace", b.workspace),
            ("staging", b.staging),
        ] {
            if bytes > 0 {
                writeln!(f, "  {what:<24}{:>14} MiB", mib(bytes))?;
            }
        }
        let t = &self.bytes_per_token;
        writeln!(
            f,
            "  {:<24}{:>14} B: {} device, {} host\n",
            "a token", t.total, t.device, t.host
        )?;
        self.heaps.iter().try_for_each(|heap| write_heap(f, heap))?;
        writeln!(f, "\n  the longest context that fits: {}\n", self.max_context)?;
        writeln!(f, "  A decoded token reads, in MiB:")?;
        write!(f, "  {:>9} {:>10} {:>10} {:>11}", "depth", "weights", "state", "keys+values")?;
        writeln!(f, " {:>10} {:>10} {:>9} {:>8}", "index keys", "all", "ms", "tokens/s")?;
        for r in &self.read_per_token {
            let [weights, state, kv, pooled, total] =
                [r.weights, r.state, r.kv, r.index_pooled, r.total].map(mib);
            let figure = |x: Option<f64>, digits| x.map_or("-".into(), |x| format!("{x:.digits$}"));
            let (ms, rate) = (figure(r.ms, 2), figure(r.tokens_per_second, 1));
            write!(f, "  {:>9} {weights:>10} {state:>10} {kv:>11} ", r.depth)?;
            writeln!(f, "{pooled:>10} {total:>10} {ms:>9} {rate:>8}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  Note: {note}."))
    }
}

fn write_heap(f: &mut fmt::Formatter<'_>, heap: &HeapPlan) -> fmt::Result {
    let HeapPlan { name, size, planned, reserve, source } = heap;
    let cells = |bytes: u64| (bytes as f64 / (*size).max(1) as f64 * BAR as f64).round() as usize;
    let used = cells(*planned).min(BAR);
    let kept = cells(*reserve).min(BAR - used);
    let bar = "#".repeat(used) + &".".repeat(BAR - used - kept) + &"-".repeat(kept);
    let over = if planned + reserve > *size && *planned > 0 { " TOO MUCH" } else { "" };
    let [planned, size, reserve] = [*planned, *size, *reserve].map(mib);
    write!(f, "  {name:<7}[{bar}] {planned} of {size} MiB{over} ({source}), ")?;
    writeln!(f, "{reserve} kept free")
}
