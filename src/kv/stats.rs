//! The traffic of keys and values (spec/kv-offload.md 6): counted here where it follows from
//! positions. What queries select is known to the device: it counts what prompts copy from host
//! memory ([`super::Staging`]), and in a cache of both memories what lies there
//! ([`crate::ops::host_rows`]).

use super::{AttentionReads, IndexLayer, KvLayer, KvSegment, KvSpan};
use crate::{
    gpu::{Heap, MemoryReport},
    ops::host_rows::HostRowCounts,
};
use serde::Serialize;

/// A step, as far as counts depend on it.
#[derive(Clone, Copy, Debug)]
pub struct StepTaken {
    /// Position of its first token.
    pub first: u32,
    /// Its tokens.
    pub n: u32,
    /// The segments and pieces it read; none without attention layers.
    pub span: Option<KvSpan>,
    /// Layers that select what they read did not need to.
    pub dense: bool,
    /// What the last layer left was read.
    pub read: bool,
}

/// What follows from positions, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Tokens of the sequence that took the last step.
    pub tokens: u32,
    /// Attention layers.
    pub layers: u32,
    /// Those of them that select what they read.
    pub sparse_layers: u32,
    /// Bytes of a token's keys and values in all of them.
    pub row_bytes: u64,
    /// Steps of one token.
    pub steps: u64,
    /// What these read.
    pub decode: AttentionReads,
    /// Bytes of keys and values that these read in host memory, but for [`Seen::rows`].
    pub decode_host: u64,
    /// Steps of more tokens.
    pub chunks: u64,
    /// What these read, each query by itself.
    pub prefill: AttentionReads,
    /// Bytes of keys and values of it that lie in host memory, but for [`Seen::rows`].
    pub prefill_host: u64,
    /// Those of them that were read in place.
    pub in_place: u64,
    /// Pieces of the history that these copied from host memory.
    pub pieces: u64,
    /// Bytes of keys, values and raw index keys written to host memory.
    pub written_host: u64,
}

/// What only the device or the allocator knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Bytes that prompts have copied from host memory.
    pub copied: u64,
    /// Rows of host memory that queries have selected in layers whose cache lies in both memories.
    pub rows: HostRowCounts,
    /// Nanoseconds that decoding has read keys and values, where that is measured.
    pub read_ns: Option<f64>,
    /// What the cache has allocated.
    pub resident: Resident,
    /// What was planned for it.
    pub planned: Option<Resident>,
}

/// Bytes of the cache by where they lie, as far as statistics tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Keys, values and raw index keys in host memory.
    pub host: u64,
    /// Pooled index keys on the device.
    pub pooled: u64,
}

impl Resident {
    /// Those of `memory`.
    pub fn of(memory: &MemoryReport) -> Self {
        let MemoryReport { device, host } = memory;
        Self { host: host.kv + host.index_raw, pooled: device.index_pooled }
    }
}

impl KvCounts {
    /// Begins a step.
    pub(crate) fn begin(&mut self, step: StepTaken) {
        (self.tokens, self.layers, self.row_bytes) = (step.first + step.n, 0, 0);
        self.sparse_layers = 0;
        *(if step.n == 1 { &mut self.steps } else { &mut self.chunks }) += 1;
    }

    /// Adds what one layer writes in the step and, if it `attends`, what it reads.
    pub(crate) fn add(
        &mut self,
        kv: &KvLayer,
        index: Option<&IndexLayer>,
        step: StepTaken,
        attends: bool,
    ) {
        let StepTaken { first, n, dense, .. } = step;
        self.layers += 1;
        self.sparse_layers += u32::from(index.is_some());
        self.row_bytes += kv.bytes_per_token();
        let row = kv.bytes_per_token() + index.map_or(0, |index| index.bytes(1));
        for segment in kv.segments().iter().filter(|segment| segment.heap() == Heap::Host) {
            let end = (first + n).min(segment.first + segment.tokens);
            self.written_host += u64::from(end.saturating_sub(first.max(segment.first))) * row;
        }
        if !attends {
            return;
        }
        let mut reads = AttentionReads::default();
        reads.add(kv, index, (first, n), dense);
        let sparse = index.filter(|_| !dense).map(IndexLayer::shape);
        let read = step.span.map_or(&[][..], |span| &kv.segments()[..span.to as usize]);
        let host = host_bytes(kv, read, reads.kv_bytes, (first, n), sparse.is_some());
        if n == 1 {
            self.decode += reads;
            self.decode_host += host;
            return;
        }
        self.prefill += reads;
        self.prefill_host += host;
        let Some(span) = step.span else { return };
        match kv.cheapest(span, n, sparse).pieces {
            Some(pieces) => {
                let pieces = kv.pieces().take(pieces as usize);
                self.pieces += pieces.filter(|p| p.segment.heap() == Heap::Host).count() as u64;
            }
            None => self.in_place += host,
        }
    }

    /// What both kinds of steps have read.
    pub fn reads(&self) -> AttentionReads {
        let mut all = self.decode;
        all += self.prefill;
        all
    }

    /// The report, given what was `seen` besides.
    pub fn report(&self, seen: &Seen) -> KvStats {
        let Self { decode, prefill, steps, .. } = self;
        let row = self.row_bytes / u64::from(self.layers.max(1));
        let rows = seen.rows;
        let naive_host = self.prefill_host + (rows.streamed + rows.in_place) * row;
        let in_place = self.in_place + rows.in_place * row;
        let moved = seen.copied + in_place;
        let time = seen.read_ns.filter(|ns| *ns > 0.0);
        KvStats {
            ctx_tokens: self.tokens,
            layers: self.layers,
            layers_qsa: self.sparse_layers,
            row_bytes: self.row_bytes,
            decode: DecodeTraffic {
                steps: *steps,
                tokens_selected_avg: decode.average_tokens(),
                tokens_selected_max: decode.most_tokens,
                bytes_gathered: decode.kv_bytes,
                bytes_gathered_host: self.decode_host + rows.decode * row,
                bytes_per_step: decode.kv_bytes / (*steps).max(1),
                gather_ms: time.map(|ns| ns / 1e6 / (*steps).max(1) as f64),
                // Bytes a nanosecond.
                gb_per_s: time.map(|ns| decode.kv_bytes as f64 / ns),
                pool_scan_bytes: decode.pooled_bytes / (*steps).max(1),
            },
            prefill: PrefillTraffic {
                chunks: self.chunks,
                segments: self.pieces,
                bytes_streamed: seen.copied,
                bytes_in_place: in_place,
                bytes_naive: prefill.kv_bytes,
                bytes_naive_host: naive_host,
                ratio: (moved > 0).then(|| naive_host as f64 / moved as f64),
            },
            bytes_written_host: self.written_host,
            host_resident: seen.resident.host,
            host_planned: seen.planned.map(|planned| planned.host),
            device_pooled: seen.resident.pooled,
            device_pooled_planned: seen.planned.map(|planned| planned.pooled),
        }
    }
}

/// Of the bytes `all` that `n` queries from position `first` on read in the segments `read`, those
/// in host memory: as positions tell it, so nothing where queries that are `sparse` choose among
/// segments of both memories.
fn host_bytes(
    kv: &KvLayer,
    read: &[KvSegment],
    all: u64,
    (first, n): (u32, u32),
    sparse: bool,
) -> u64 {
    let on_host = |segment: &&KvSegment| segment.heap() == Heap::Host;
    match read.iter().filter(on_host).count() {
        0 => 0,
        count if count == read.len() => all,
        _ if sparse => 0,
        _ => {
            let rows = |segment: &KvSegment, position: u32| {
                u64::from((position + 1).saturating_sub(segment.first).min(segment.tokens))
            };
            let of = |segment| (first..first + n).map(|at| rows(segment, at)).sum::<u64>();
            read.iter().filter(on_host).map(of).sum::<u64>() * kv.bytes_per_token()
        }
    }
}

/// The traffic of keys and values in all attention layers since the model was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KvStats {
    /// Tokens of the sequence that took the last step.
    pub ctx_tokens: u32,
    /// Attention layers.
    pub layers: u32,
    /// Those of them that select what they read.
    pub layers_qsa: u32,
    /// Bytes of a token's keys and values in all of them.
    pub row_bytes: u64,
    /// Steps of one token.
    pub decode: DecodeTraffic,
    /// Steps of more tokens.
    pub prefill: PrefillTraffic,
    /// Bytes of keys, values and raw index keys written to host memory.
    pub bytes_written_host: u64,
    /// Bytes that these have allocated there.
    pub host_resident: u64,
    /// The same at a full context, as planned, where there is a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_planned: Option<u64>,
    /// Bytes allocated on the device for pooled index keys.
    pub device_pooled: u64,
    /// The same at a full context, as planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_pooled_planned: Option<u64>,
}

/// What decoding has read, wherever it lay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DecodeTraffic {
    /// Steps.
    pub steps: u64,
    /// Tokens attended to in one layer, the mean.
    pub tokens_selected_avg: f64,
    /// The same, the most.
    pub tokens_selected_max: u32,
    /// Bytes of their keys and values, all layers.
    pub bytes_gathered: u64,
    /// Those of them that were in host memory.
    pub bytes_gathered_host: u64,
    /// All of them, the mean of a step.
    pub bytes_per_step: u64,
    /// Milliseconds that the device took to read them, the mean of a step; nothing where that is
    /// not measured or the device has no timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather_ms: Option<f64>,
    /// Bytes (10^9) a second that this makes.
    #[serde(rename = "GB/s", skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<f64>,
    /// Bytes of pooled index keys compared with queries, the mean of a step.
    pub pool_scan_bytes: u64,
}

/// What prompts have read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrefillTraffic {
    /// Steps.
    pub chunks: u64,
    /// Pieces of the history copied from host memory, a piece in every layer counted.
    pub segments: u64,
    /// Bytes copied from host memory.
    pub bytes_streamed: u64,
    /// Bytes of host memory read in place, each query by itself.
    pub bytes_in_place: u64,
    /// Bytes that all queries attended to, each by itself, wherever they lay.
    pub bytes_naive: u64,
    /// Those of them that were in host memory.
    pub bytes_naive_host: u64,
    /// `bytes_naive_host / (bytes_streamed + bytes_in_place)`; none where nothing was in host
    /// memory.
    pub ratio: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::{Caps, Ledger},
        kv::{IndexShape, KvType},
    };

    const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };

    /// The cache of one of Flash-Next's layers, planned in host memory.
    fn on_host(context: u32) -> KvLayer {
        let ledger = Ledger::new(Caps::usual());
        let mut kv = KvLayer::new(&ledger, 2, 256, KvType::F16, KvType::F16).unwrap();
        kv.ensure(&ledger, context, context, Heap::Host).unwrap();
        kv
    }

    fn step(kv: &KvLayer, first: u32, n: u32) -> StepTaken {
        StepTaken { first, n, span: Some(kv.span(first, n).unwrap()), dense: false, read: true }
    }

    /// The published method moved 1/103 of the naive bytes.
    #[test]
    fn prompts_of_flash_next_move_a_250th_of_what_their_queries_read() {
        let kv = on_host(60_000);
        let index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
        let (mut counts, mut history) = (KvCounts::default(), 0);
        for first in (0..60_000).step_by(4096) {
            let step = step(&kv, first, 4096.min(60_000 - first));
            counts.begin(step);
            counts.add(&kv, Some(&index), step, true);
            // No page is left out.
            history += u64::from(first) * counts.row_bytes;
        }
        let stats = counts.report(&Seen { copied: history, ..Seen::default() });
        assert_eq!((stats.row_bytes, stats.prefill.chunks), (2048, 15));
        // 2,766.5 and 9.84 GiB in twelve layers (spec/kv-offload.md 5).
        let gib = |bytes: u64| (bytes * 12) as f64 / f64::from(1 << 30);
        assert!((gib(stats.prefill.bytes_naive) - 2766.5).abs() < 0.1, "{stats:?}");
        assert_eq!(stats.prefill.bytes_naive, stats.prefill.bytes_naive_host);
        assert!((gib(history) - 9.84).abs() < 0.01, "{stats:?}");
        assert!(stats.prefill.ratio.unwrap() >= 250.0, "{stats:?}");
    }

    #[test]
    fn a_decoded_token_gathers_the_same_at_4k_and_at_1m() {
        let kv = on_host(1 << 20);
        let index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
        let at = |first| {
            let mut counts = KvCounts::default();
            let step = step(&kv, first, 1);
            counts.begin(step);
            for _ in 0..12 {
                counts.add(&kv, Some(&index), step, true);
            }
            counts.report(&Seen { read_ns: Some(2e6), ..Seen::default() })
        };
        for first in [4095, 1_048_575] {
            let stats = at(first);
            assert_eq!((stats.layers, stats.layers_qsa, stats.row_bytes), (12, 12, 24_576));
            assert_eq!(stats.decode.tokens_selected_max, 2048);
            assert_eq!(stats.decode.bytes_per_step, 50_331_648);
            assert_eq!(stats.decode.bytes_gathered_host, 50_331_648);
            assert_eq!(stats.decode.pool_scan_bytes, 64 * 12 * u64::from(first + 1));
            assert_eq!(stats.decode.gather_ms, Some(2.0));
            assert!((stats.decode.gb_per_s.unwrap() - 25.165_824).abs() < 1e-6);
        }
        assert_eq!(at(1_048_574).decode.bytes_per_step, 50_405_376);
    }

    #[test]
    fn of_both_memories_only_rows_of_the_host_cross_the_bus() {
        let ledger = Ledger::new(Caps::usual());
        let mut kv = KvLayer::new(&ledger, 1, 8, KvType::F16, KvType::F16).unwrap();
        kv = kv.with_segments_of(64);
        for (tokens, heap) in [(64, Heap::Device), (128, Heap::Host), (192, Heap::Device)] {
            kv.ensure(&ledger, tokens, 192, heap).unwrap();
        }
        let row = kv.bytes_per_token();
        // Queries at 126, 127, 128: 63, 64 and 64 rows of the second segment.
        let mut counts = KvCounts::default();
        let chunk = step(&kv, 126, 3);
        counts.begin(chunk);
        counts.add(&kv, None, chunk, true);
        let one = step(&kv, 70, 1);
        counts.begin(one);
        counts.add(&kv, None, one, true);
        let stats = counts.report(&Seen::default());
        assert_eq!(stats.prefill.bytes_naive, (127 + 128 + 129) * row);
        assert_eq!(stats.prefill.bytes_naive_host, (63 + 64 + 64) * row);
        assert_eq!(stats.prefill.bytes_in_place, (63 + 64 + 64) * row);
        assert_eq!(
            (stats.decode.bytes_gathered, stats.decode.bytes_gathered_host),
            (71 * row, 7 * row)
        );
        assert_eq!((stats.decode.gather_ms, stats.decode.gb_per_s), (None, None));
        // Of what queries select among both, the device tells.
        let index = IndexLayer::new(IndexShape { budget: 16, ..SHAPE }, KvType::F16).unwrap();
        let mut counts = KvCounts::default();
        counts.begin(one);
        counts.add(&kv, Some(&index), one, true);
        let rows = HostRowCounts { decode: 7, ..HostRowCounts::default() };
        let stats = counts.report(&Seen { rows, ..Seen::default() });
        assert_eq!(stats.decode.bytes_gathered_host, 7 * row);
        assert_eq!(stats.decode.bytes_gathered, (16 + 3) * row);
    }
}
