//! The indexer: keys, scores and the choice of blocks, each by itself.

use super::KernelCheck;
use crate::{
    Result,
    gpu::Heap,
    kv::{IndexLayer, IndexShape, IndexStep, KvLayer, KvSpan, KvType},
    model::rope::RopeKind,
    ops::{
        index_scores, index_write,
        reference::{
            Deviation,
            cached::{cached, rounding, stored, uncached},
            indexer::{largest, pooled, score},
            random, rope, wide,
        },
        rope::{HeadNorm, RopeTable, Rotation},
        top_blocks::{self, Selection, TopScratch},
    },
    selftest::lab::Lab,
};

const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 512 };
const D: usize = SHAPE.head_dim as usize;
const RATIO: usize = SHAPE.ratio as usize;

pub(super) fn checks() -> Vec<KernelCheck> {
    vec![
        KernelCheck::new("indexer write", write),
        KernelCheck::new("indexer scores", scores),
        KernelCheck::new("indexer choice", choice),
    ]
}

/// A layer's index keys, all in one segment.
struct Index {
    layer: IndexLayer,
    element: KvType,
    span: KvSpan,
}

impl Index {
    fn new(lab: &Lab, tokens: u32) -> Result<Self> {
        // Their type does not depend on that of attention keys, but for an f32 cache.
        let element = lab.cache.0.of_index();
        let mut kv = KvLayer::new(&lab.gpu, 1, 8, element, element)?;
        kv.ensure(&lab.gpu, tokens, 1 << 20, Heap::Device)?;
        let mut layer = IndexLayer::new(SHAPE, element)?;
        layer.follow(&lab.gpu, &kv, 1 << 20)?;
        Ok(Self { layer, element, span: kv.span(0, tokens)? })
    }
}

/// Where value `i` of the pooled key of `block` is stored ([`crate::kv::PooledKeys`]).
fn place(block: usize, i: usize) -> usize {
    ((block / 32 * (D / 8) + i / 8) * 32 + block % 32) * 8 + i % 8
}

/// Raw and pooled keys of two steps, the second of which completes a block of the first.
fn write(lab: &Lab) -> Result<Vec<Deviation>> {
    const ENDS: [usize; 2] = [66, 131];
    let tokens = ENDS[1];
    let index = Index::new(lab, tokens as u32)?;
    let frequencies = rope::frequencies(64, 1e7);
    let rope = RopeTable::new(frequencies.clone(), 1.0);
    let (keys, gamma) = (random(1, tokens * D), random(2, D));
    let gamma_t = lab.upload(&gamma, D)?;
    for [begin, end] in [[0, ENDS[0]], ENDS] {
        let n = (end - begin) as u32;
        let keys_t = lab.upload(&keys[begin * D..end * D], D)?;
        let positions = lab.upload_words(&(begin as u32..end as u32).collect::<Vec<_>>())?;
        let (first, touched) = ((begin / RATIO * RATIO) as u32, SHAPE.touched(n));
        let table = rope.tensor(&lab.gpu, touched)?;
        rope.write_every(&lab.gpu, first, SHAPE.ratio, touched, &table)?;
        lab.run(|rec| {
            let step = IndexStep { layer: &index.layer, positions: &positions, span: index.span };
            let norm = HeadNorm { gamma: &gamma_t, eps: 1e-6 };
            let blocks = Rotation { table: &table, kind: RopeKind::Neox };
            index_write::record(rec, &keys_t, norm, blocks, step, n)
        })?;
    }
    let segment = &index.layer.segments()[0];
    let raw = lab.cached(index.element, &segment.raw, tokens, D)?;
    let stored = stored(index.element, &keys, D);
    let blocks = tokens / RATIO;
    let keys_of_blocks = &index.layer.pooled()[0].keys;
    let got = lab.cached(index.element, keys_of_blocks, blocks.next_multiple_of(32), D)?;
    let got = (0..blocks * D).map(|i| got[place(i / D, i % D)]);
    let want = stored.chunks_exact(RATIO * D).enumerate().flat_map(|(block, keys)| {
        let position = (block * RATIO) as u32;
        pooled(keys, (&gamma, 1e-6), &frequencies, RopeKind::Neox, position)
    });
    Ok(vec![
        Deviation::of("raw key", raw, keys, rounding(index.element)),
        Deviation::of("pooled key", got, want, rounding(index.element)),
    ])
}

/// Scores of all complete blocks of some queries past the budget.
fn scores(lab: &Lab) -> Result<Vec<Deviation>> {
    const FIRST: u32 = 4001;
    const TOKENS: usize = 5;
    let end = FIRST + TOKENS as u32;
    let index = Index::new(lab, end)?;
    let segment = &index.layer.segments()[0];
    let stride = (segment.tokens / SHAPE.ratio) as usize;
    let bytes = cached(index.element, &random(1, stride * D), D);
    lab.gpu.upload(&index.layer.pooled()[0].keys, 0, &bytes)?;
    let keys = uncached(index.element, &bytes, D);
    let row = SHAPE.heads as usize * D;
    let q = random(2, TOKENS * row);
    let q_t = lab.upload(&q, row)?;
    let positions: Vec<u32> = (FIRST..end).collect();
    let positions_t = lab.upload_words(&positions)?;
    let scores = lab.scratch(TOKENS, stride)?;
    lab.run(|rec| {
        let step = IndexStep { layer: &index.layer, positions: &positions_t, span: index.span };
        let to = (&scores.buf, stride as u32);
        index_scores::record(rec, &q_t, step, (TOKENS as u32).into(), to)
    })?;
    let key = |block| wide(&(0..D).map(|i| keys[place(block, i)]).collect::<Vec<_>>());
    let keys: Vec<Vec<f64>> = (0..SHAPE.complete(end) as usize).map(key).collect();
    let (mut got, mut want) = (Vec::new(), Vec::new());
    let rows = lab.values(&scores)?;
    for ((position, q), scores) in positions.iter().zip(q.chunks(row)).zip(rows.chunks(stride)) {
        let (q, complete) = (wide(q), SHAPE.complete(*position) as usize);
        got.extend_from_slice(&scores[..complete]);
        want.extend(keys[..complete].iter().map(|key| score(&q, key)));
    }
    Ok(vec![Deviation::of("score", got, want, 1e-5)])
}

/// The best of given scores, of which many are equal.
fn choice(lab: &Lab) -> Result<Vec<Deviation>> {
    const BLOCKS: usize = 40_000;
    let rows = [1.0, 100.0, 1e6].map(|distinct| -> Vec<u32> {
        let scores = random(1, BLOCKS).into_iter().map(|v| (v.max(0.0) * distinct).ceil());
        scores.map(f32::to_bits).collect()
    });
    let n = rows.len() as u32;
    let scores = lab.upload_words(&rows.concat())?;
    let positions = lab.upload_words(&[BLOCKS as u32 * SHAPE.ratio; 3])?;
    let scratch = TopScratch::new(&lab.gpu, SHAPE, n, rows.concat().len() as u64)?;
    let selection = Selection::new(&lab.gpu, SHAPE, n)?;
    lab.run(|rec| {
        let scores = (&scores, BLOCKS as u32);
        top_blocks::record(rec, scores, &positions, SHAPE, n.into(), &scratch, &selection)
    })?;
    let most = SHAPE.most() as usize;
    let want = rows.iter().flat_map(|row| largest(row, most));
    Ok(vec![Deviation::of("block", lab.words(&selection.blocks, rows.len() * most)?, want, 0.0)])
}
