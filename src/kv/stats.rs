//! The traffic of keys and values (spec/kv-offload.md 6): counted here where it follows from
//! positions; what prompts copy from host memory depends on what their queries select and is
//! counted by the device ([`super::Staging`]).

use super::{AttentionReads, IndexLayer, KvLayer, KvSpan};
use crate::gpu::Heap;
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
    /// Bytes of a token's keys and values in all of them.
    pub row_bytes: u64,
    /// Steps of one token.
    pub steps: u64,
    /// What these read.
    pub decode: AttentionReads,
    /// Steps of more tokens.
    pub chunks: u64,
    /// What these read, each query by itself.
    pub prefill: AttentionReads,
    /// Pieces of the history that these copied from host memory.
    pub pieces: u64,
    /// Bytes that these read in place while part of the history was in host memory, each query by
    /// itself.
    pub in_place: u64,
    /// Bytes of keys, values and raw index keys written to host memory.
    pub written_host: u64,
}

impl KvCounts {
    /// Begins a step.
    pub(crate) fn begin(&mut self, step: StepTaken) {
        (self.tokens, self.layers, self.row_bytes) = (step.first + step.n, 0, 0);
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
        if n == 1 {
            self.decode += reads;
            return;
        }
        self.prefill += reads;
        let Some(span) = step.span else { return };
        let sparse = index.filter(|_| !dense).map(IndexLayer::shape);
        match kv.cheapest(span, n, sparse).pieces {
            Some(pieces) => {
                let pieces = kv.pieces().take(pieces as usize);
                self.pieces += pieces.filter(|p| p.segment.heap() == Heap::Host).count() as u64;
            }
            None => {
                let read = &kv.segments()[..span.to as usize];
                let any = read.iter().any(|segment| segment.heap() == Heap::Host);
                self.in_place += if any { reads.kv_bytes } else { 0 };
            }
        }
    }

    /// What both kinds of steps have read.
    pub fn reads(&self) -> AttentionReads {
        let mut all = self.decode;
        all += self.prefill;
        all
    }

    /// The report, given what the device has `copied` and how many bytes of keys and values are
    /// `resident` in host memory and of `pooled` index keys on the device.
    pub fn report(&self, copied: u64, resident: u64, pooled: u64) -> KvStats {
        let Self { decode, prefill, steps, .. } = self;
        let moved = copied + self.in_place;
        KvStats {
            ctx_tokens: self.tokens,
            layers: self.layers,
            row_bytes: self.row_bytes,
            decode: DecodeTraffic {
                steps: *steps,
                tokens_selected_avg: decode.average_tokens(),
                tokens_selected_max: decode.most_tokens,
                bytes_gathered: decode.kv_bytes,
                bytes_per_step: decode.kv_bytes / (*steps).max(1),
                pool_scan_bytes: decode.pooled_bytes / (*steps).max(1),
            },
            prefill: PrefillTraffic {
                chunks: self.chunks,
                segments: self.pieces,
                bytes_streamed: copied,
                bytes_in_place: self.in_place,
                bytes_naive: prefill.kv_bytes,
                ratio: (moved > 0).then(|| prefill.kv_bytes as f64 / moved as f64),
            },
            bytes_written_host: self.written_host,
            host_resident: resident,
            device_pooled: pooled,
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
    /// Bytes allocated on the device for pooled index keys.
    pub device_pooled: u64,
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
    /// The same, the mean of a step.
    pub bytes_per_step: u64,
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
    /// Bytes read in place, each query by itself, while part of the history was in host memory.
    pub bytes_in_place: u64,
    /// Bytes that all queries attended to, each by itself, wherever they lay.
    pub bytes_naive: u64,
    /// `bytes_naive / (bytes_streamed + bytes_in_place)`; none where nothing was in host memory.
    pub ratio: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::{IndexShape, KvType},
        ops::testing::each_device,
    };

    const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };

    /// The published method moved 1/103 of the naive bytes.
    #[test]
    fn prompts_of_flash_next_move_a_250th_of_what_their_queries_read() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 2, 256, KvType::F16, KvType::F16).unwrap();
            let index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
            let (mut counts, mut history) = (KvCounts::default(), 0);
            for first in (0..60_000).step_by(4096) {
                let n = 4096.min(60_000 - first);
                // No page is left out, no segment on the host.
                let step = StepTaken { first, n, span: None, dense: false, read: true };
                counts.begin(step);
                counts.add(&kv, Some(&index), step, true);
                history += u64::from(first) * counts.row_bytes;
            }
            let stats = counts.report(history, 0, 0);
            assert_eq!((stats.row_bytes, stats.prefill.chunks), (2048, 15));
            // 2,766.5 and 9.84 GiB in twelve layers (spec/kv-offload.md 5).
            let gib = |bytes: u64| (bytes * 12) as f64 / f64::from(1 << 30);
            assert!((gib(stats.prefill.bytes_naive) - 2766.5).abs() < 0.1, "{stats:?}");
            assert!((gib(history) - 9.84).abs() < 0.01, "{stats:?}");
            assert!(stats.prefill.ratio.unwrap() >= 250.0, "{stats:?}");
        });
    }

    #[test]
    fn a_decoded_token_gathers_the_same_at_4k_and_at_1m() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 2, 256, KvType::F16, KvType::F16).unwrap();
            let index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
            let at = |first| {
                let mut counts = KvCounts::default();
                let step = StepTaken { first, n: 1, span: None, dense: false, read: true };
                counts.begin(step);
                for _ in 0..12 {
                    counts.add(&kv, Some(&index), step, true);
                }
                counts.report(0, 0, 0)
            };
            for first in [4095, 1_048_575] {
                let stats = at(first);
                assert_eq!((stats.layers, stats.row_bytes), (12, 24_576));
                assert_eq!(stats.decode.tokens_selected_max, 2048);
                assert_eq!(stats.decode.bytes_per_step, 50_331_648);
                assert_eq!(stats.decode.pool_scan_bytes, 64 * 12 * u64::from(first + 1));
            }
            assert_eq!(at(1_048_574).decode.bytes_per_step, 50_405_376);
        });
    }
}
