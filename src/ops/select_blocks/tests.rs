//! Index keys, scores and selection of whole sequences against f64.

use super::*;
use crate::{
    gpu::Heap,
    kv::{IndexLayer, KvLayer, KvType},
    model::rope::RopeKind,
    ops::{
        index_write,
        qk_rope::{self, Heads},
        reference::{
            cached::{stored, uncached},
            indexer, rope as reference, wide,
        },
        rope::{HeadNorm, RopeTable, Rotation},
        testing::{TestDevice, each_device, random},
    },
};

const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 32, ratio: 4, budget: 32 };
const KIND: RopeKind = RopeKind::Neox;
const EPS: f64 = 1e-6;

/// What the projections give for the tokens of a sequence, and the norms' weights.
struct Inputs {
    shape: IndexShape,
    q: Vec<f32>,
    keys: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
}

/// What a sequence's steps leave.
struct Outcome {
    /// Of each query.
    chosen: Vec<Vec<u32>>,
    /// Bytes of the last token's raw and pooled keys' segments, as far as they are specified.
    raw: Vec<u8>,
    pooled: Vec<Vec<u8>>,
}

/// A sequence on a device.
struct Sequence {
    kv: KvLayer,
    index: IndexLayer,
    tokens: u32,
}

impl Sequence {
    fn new(t: &TestDevice, shape: IndexShape, element: KvType, segment: u32) -> Self {
        let kv = KvLayer::new(&t.gpu, 1, 8, element, element).unwrap();
        let index = IndexLayer::new(shape, element).unwrap();
        Self { kv: kv.with_segments_of(segment), index, tokens: 0 }
    }
}

impl Inputs {
    fn new(shape: IndexShape, seed: u64, tokens: usize) -> Self {
        let d = shape.head_dim as usize;
        Self {
            shape,
            q: random(seed, tokens * shape.heads as usize * d),
            keys: random(seed + 1, tokens * d),
            q_norm: random(8, d),
            k_norm: random(9, d),
        }
    }

    fn frequencies(&self) -> Vec<f64> {
        reference::frequencies(self.shape.head_dim as usize / 2, 1e4)
    }

    /// Runs the next `n` tokens of `seq` as one step; returns the blocks that each selects.
    fn step(
        &self,
        t: &TestDevice,
        seq: &mut Sequence,
        n: u32,
        scratch: &SelectScratch,
    ) -> Vec<Vec<u32>> {
        let (gpu, shape, first) = (&t.gpu, self.shape, seq.tokens);
        let d = shape.head_dim as usize;
        let heads = shape.heads as usize;
        let rows = |all: &[f32], width: usize| {
            t.upload(&all[first as usize * width..(first + n) as usize * width], width)
        };
        let (q, keys) = (rows(&self.q, heads * d), rows(&self.keys, d));
        let (q_norm, k_norm) = (t.upload(&self.q_norm, d), t.upload(&self.k_norm, d));
        let norm = |gamma| HeadNorm { gamma, eps: EPS as f32 };
        seq.kv.ensure(gpu, first + n, 1 << 20, Heap::Device).unwrap();
        seq.index.follow(gpu, &seq.kv, 1 << 20).unwrap();
        let rope = RopeTable::new(self.frequencies(), 1.0);
        let table = rope.tensor(gpu, n).unwrap();
        rope.write(gpu, first, n, &table).unwrap();
        let touched = shape.touched(n);
        let blocks = rope.tensor(gpu, touched).unwrap();
        let first_block = first / shape.ratio * shape.ratio;
        rope.write_every(gpu, first_block, shape.ratio, touched, &blocks).unwrap();
        let positions = t.upload_words(&(first..first + n).collect::<Vec<_>>());
        let span = seq.kv.span(first, n).unwrap();
        let step = IndexStep { layer: &seq.index, positions: &positions, span };
        let turned = t.scratch(n as usize, heads * d);
        let selection = Selection::new(gpu, shape, n).unwrap();
        t.run(|rec| {
            let rotation = Rotation { table: &blocks, kind: KIND };
            index_write::record(rec, &keys, norm(&k_norm), rotation, step, n)?;
            let rotation = Rotation { table: &table, kind: KIND };
            let each = Heads { count: shape.heads, stride: shape.head_dim };
            qk_rope::record(rec, (&q, each), Some(norm(&q_norm)), rotation, &turned, n)?;
            record(rec, &turned, step, scratch, &selection, n)
        });
        seq.tokens += n;
        let most = shape.most() as usize;
        let words = t.read_words(&selection.blocks, n as usize * most);
        (first..first + n)
            .zip(words.chunks(most))
            .map(|(p, row)| row[..most.min(shape.complete(p) as usize)].to_vec())
            .collect()
    }

    /// Runs `tokens` tokens in chunks of `chunk`, which cross segments of `segment` tokens.
    fn run(
        &self,
        t: &TestDevice,
        element: KvType,
        (tokens, chunk): (u32, u32),
        segment: u32,
        scores: u32,
    ) -> Outcome {
        let mut seq = Sequence::new(t, self.shape, element, segment);
        let scratch =
            SelectScratch::with_scores(&t.gpu, self.shape, chunk, 1 << 12, scores).unwrap();
        let mut chosen = Vec::new();
        while seq.tokens < tokens {
            let n = chunk.min(tokens - seq.tokens);
            chosen.extend(self.step(t, &mut seq, n, &scratch));
        }
        let read = |buf: &Buf, bytes: u64| t.gpu.read(buf, 0, bytes).unwrap();
        let last = seq.index.segments().last().unwrap();
        let raw = element.bytes(u64::from((tokens - last.first) * self.shape.head_dim));
        let raw = read(&last.raw, raw);
        let pooled = (0..self.shape.complete(tokens - 1))
            .map(|block| self.pooled(t, &seq.index, block))
            .collect();
        Outcome { chosen, raw, pooled }
    }

    /// Bytes of a pooled key.
    fn pooled(&self, t: &TestDevice, index: &IndexLayer, block: u32) -> Vec<u8> {
        let eights = self.shape.head_dim / 8;
        let position = block * self.shape.ratio;
        let pooled = index.pooled().iter().find(|p| position - p.first < p.tokens).unwrap();
        let block = (position - pooled.first) / self.shape.ratio;
        let size = index.element().bytes(8);
        (0..eights)
            .flat_map(|e| {
                let at = u64::from((block / 32 * eights + e) * 32 + block % 32);
                t.gpu.read(&pooled.keys, at * size, size).unwrap()
            })
            .collect()
    }

    /// A pooled key in f64, of raw keys stored as `element`.
    fn pooled_reference(&self, element: KvType, block: u32) -> Vec<f64> {
        let (d, ratio) = (self.shape.head_dim as usize, self.shape.ratio as usize);
        let first = block as usize * ratio;
        let keys = stored(element, &self.keys[first * d..(first + ratio) * d], d);
        let norm = (self.k_norm.as_slice(), EPS);
        indexer::pooled(&keys, norm, &self.frequencies(), KIND, first as u32)
    }

    /// Checks `outcome` against f64: pooled keys, and that no block left out has a score above
    /// that of one chosen.
    fn check(&self, outcome: &Outcome, element: KvType) {
        let (shape, d) = (self.shape, self.shape.head_dim as usize);
        let tolerance = if element == KvType::F32 { 1e-5 } else { 1e-3 };
        let pooled: Vec<Vec<f64>> = (outcome.pooled.iter().enumerate())
            .map(|(block, bytes)| {
                let got = wide(&uncached(element, bytes, d));
                let want = self.pooled_reference(element, block as u32);
                for (got, want) in got.iter().zip(&want) {
                    assert!((got - want).abs() < tolerance, "block {block}: {got} for {want}");
                }
                got
            })
            .collect();
        let frequencies = self.frequencies();
        for (position, chosen) in outcome.chosen.iter().enumerate() {
            let complete = shape.complete(position as u32);
            assert_eq!(chosen.len() as u32, complete.min(shape.most()));
            assert!(chosen.is_sorted() && chosen.iter().all(|b| *b < complete));
            let heads: Vec<f64> = self.q[position * shape.heads as usize * d..]
                .chunks(d)
                .take(shape.heads as usize)
                .flat_map(|q| {
                    let norm = Some((self.q_norm.as_slice(), EPS));
                    reference::turn(q, norm, &frequencies, KIND, position as u32)
                })
                .collect();
            let score = |b: u32| indexer::score(&heads, &pooled[b as usize]);
            let least = chosen.iter().map(|b| score(*b)).fold(f64::MAX, f64::min);
            for b in (0..complete).filter(|b| !chosen.contains(b)) {
                assert!(score(b) <= least + 2e-6, "block {b} for the query at {position}");
            }
        }
    }
}

#[test]
fn every_chunk_gives_the_same_keys_and_blocks() {
    each_device(|t| {
        let (inputs, tokens) = (Inputs::new(SHAPE, 1, 300), 300);
        for element in [KvType::F32, KvType::F16] {
            let whole = inputs.run(t, element, (tokens, tokens), 1024, SCORES);
            inputs.check(&whole, element);
            for chunk in [1, 3, 64, 127] {
                let parts = inputs.run(t, element, (tokens, chunk), 1024, SCORES);
                assert!(parts.raw == whole.raw, "raw keys, chunks of {chunk}, {element}");
                assert!(parts.pooled == whole.pooled, "pooled keys, chunks of {chunk}, {element}");
                assert!(parts.chosen == whole.chosen, "blocks, chunks of {chunk}, {element}");
            }
        }
    });
}

#[test]
fn groups_of_queries_and_segments() {
    each_device(|t| {
        let inputs = Inputs::new(SHAPE, 3, 400);
        let whole = inputs.run(t, KvType::F16, (400, 400), 1024, SCORES);
        // Groups of 7 queries, of one, and the same over segments of half a tile and more.
        for (segment, scores) in [(1024, 7 * 256), (1024, 1), (64, SCORES), (256, 3000)] {
            let cut = inputs.run(t, KvType::F16, (400, 400), segment, scores);
            assert!(cut.chosen == whole.chosen, "segments of {segment}, {scores} scores");
            assert!(cut.pooled == whole.pooled, "segments of {segment}");
        }
    });
}

#[test]
fn other_sizes() {
    each_device(|t| {
        for (heads, head_dim, ratio, budget) in [(1, 8, 1, 3), (2, 128, 8, 64)] {
            let shape = IndexShape { heads, head_dim, ratio, budget };
            let inputs = Inputs::new(shape, 5, 150);
            let outcome = inputs.run(t, KvType::F32, (150, 70), 64, SCORES);
            inputs.check(&outcome, KvType::F32);
        }
    });
}

/// A decode step is recorded once: what it does follows from what the host writes.
#[test]
fn one_recording_serves_every_position() {
    each_device(|t| {
        let (inputs, tokens, d) = (Inputs::new(SHAPE, 13, 150), 150, SHAPE.head_dim as usize);
        let want = inputs.run(t, KvType::F16, (tokens, tokens), 256, SCORES).chosen;
        let heads = SHAPE.heads as usize;
        let mut seq = Sequence::new(t, SHAPE, KvType::F16, 256);
        seq.kv.ensure(&t.gpu, tokens, 1 << 20, Heap::Device).unwrap();
        seq.index.follow(&t.gpu, &seq.kv, 1 << 20).unwrap();
        let rope = RopeTable::new(inputs.frequencies(), 1.0);
        let (table, blocks) = (rope.tensor(&t.gpu, 1).unwrap(), rope.tensor(&t.gpu, 1).unwrap());
        let (q, key, turned) = (t.scratch(1, heads * d), t.scratch(1, d), t.scratch(1, heads * d));
        let (q_norm, k_norm) = (t.upload(&inputs.q_norm, d), t.upload(&inputs.k_norm, d));
        let norm = |gamma| HeadNorm { gamma, eps: EPS as f32 };
        let rotation = |table| Rotation { table, kind: KIND };
        let position_t = t.upload_words(&[0]);
        let span = seq.kv.span(0, 1).unwrap();
        let step = IndexStep { layer: &seq.index, positions: &position_t, span };
        let selection = Selection::new(&t.gpu, SHAPE, 1).unwrap();
        let scratch = SelectScratch::new(&t.gpu, SHAPE, 1, tokens).unwrap();
        let mut rec = Recorder::new(&t.gpu);
        index_write::record(&mut rec, &key, norm(&k_norm), rotation(&blocks), step, 1).unwrap();
        let each = Heads { count: SHAPE.heads, stride: SHAPE.head_dim };
        let q_norm = Some(norm(&q_norm));
        qk_rope::record(&mut rec, (&q, each), q_norm, rotation(&table), &turned, 1).unwrap();
        record(&mut rec, &turned, step, &scratch, &selection, 1).unwrap();
        let recording = rec.finish().unwrap();
        for (position, want) in (0..tokens).zip(&want) {
            let row =
                |all: &[f32], width: usize| all[position as usize * width..][..width].to_vec();
            let upload = |to: &Buf, values: &[f32]| {
                t.gpu.upload(to, 0, bytemuck::cast_slice(values)).unwrap();
            };
            upload(&q.buf, &row(&inputs.q, heads * d));
            upload(&key.buf, &row(&inputs.keys, d));
            t.gpu.upload(&position_t, 0, &position.to_le_bytes()).unwrap();
            rope.write(&t.gpu, position, 1, &table).unwrap();
            let block = position / SHAPE.ratio * SHAPE.ratio;
            rope.write_every(&t.gpu, block, SHAPE.ratio, 1, &blocks).unwrap();
            t.gpu.submit(&recording).unwrap();
            let got = t.read_words(&selection.blocks, want.len().max(1));
            assert!(got[..want.len()] == want[..], "position {position}");
        }
    });
}

#[test]
fn two_sequences_select_as_if_alone() {
    each_device(|t| {
        let both = [Inputs::new(SHAPE, 1, 90), Inputs::new(SHAPE, 11, 90)];
        let alone = |i: &Inputs| i.run(t, KvType::F16, (90, 90), 64, SCORES).chosen;
        let want: Vec<_> = both.iter().map(alone).collect();
        let mut seqs = [0, 1].map(|_| Sequence::new(t, SHAPE, KvType::F16, 64));
        let scratch = SelectScratch::new(&t.gpu, SHAPE, 9, 1 << 12).unwrap();
        let mut got = [Vec::new(), Vec::new()];
        for n in [9, 1, 5].repeat(6) {
            for ((inputs, seq), got) in both.iter().zip(&mut seqs).zip(&mut got) {
                got.extend(inputs.step(t, seq, n, &scratch));
            }
        }
        assert!(got[..] == want[..]);
    });
}

#[test]
fn small_bindings() {
    // A query's scores fit, several queries' do not.
    let t = TestDevice::with_binding(1 << 14);
    let inputs = Inputs::new(SHAPE, 7, 200);
    let outcome = inputs.run(&t, KvType::F16, (200, 32), 64, SCORES);
    inputs.check(&outcome, KvType::F16);
    assert!(SelectScratch::new(&t.gpu, SHAPE, 1, 1 << 20).is_err());
}
