//! Attention over selected blocks.

use super::{
    KernelCheck,
    attention::{Cache, Geometry, LIMIT, SHARP, WIDE},
};
use crate::{
    Result,
    gpu::Heap,
    kv::{IndexShape, KvStep},
    ops::{
        attention::{AttentionScratch, Gate},
        reference::{Deviation, indexer::largest, random, sigmoid},
        sparse_attention::{self, GatherScratch},
        top_blocks::Selection,
    },
    selftest::lab::Lab,
};

const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 512 };

/// `host`: the device also reads host memory in place.
pub(super) fn checks(host: bool) -> Vec<KernelCheck> {
    let of = |name, heap, n| KernelCheck::new(name, move |lab| attention(lab, heap, (3001, n)));
    let mut all = vec![
        of("sparse attention decode", Heap::Device, 1),
        of("sparse attention prefill", Heap::Device, 9),
    ];
    if host {
        all.push(of("sparse attention prefill, host memory", Heap::Host, 9));
    }
    all
}

/// `n` queries from position `first` on, each with a selection of its own.
fn attention(lab: &Lab, heap: Heap, (first, n): (usize, usize)) -> Result<Vec<Deviation>> {
    let Geometry { n_head, n_kv, d } = WIDE;
    let (row, scale) = (n_head * d, SHARP / (d as f32).sqrt());
    let cache = Cache::new(lab, heap, WIDE, first + n)?;
    let positions: Vec<u32> = (first as u32..(first + n) as u32).collect();
    // As many blocks as it may be, at random.
    let chosen: Vec<Vec<u32>> = (positions.iter())
        .map(|p| {
            let scores = random(u64::from(*p), SHAPE.complete(*p) as usize);
            let bits: Vec<u32> = scores.iter().map(|v| v.to_bits()).collect();
            largest(&bits, SHAPE.most() as usize)
        })
        .collect();
    let blocks = lab.upload_words(&chosen.concat())?;
    let selection = Selection { blocks, rows: n as u32, most: SHAPE.most() };
    let (q, gates) = (random(3, n * row), random(4, n * row));
    let (q_t, gates_t, out) =
        (lab.upload(&q, row)?, lab.upload(&gates, row)?, lab.scratch(n, row)?);
    let positions_t = lab.upload_words(&positions)?;
    let scratch = AttentionScratch::new(&lab.gpu, n_head as u32, d as u32, n as u32, 1)?;
    let gathered = GatherScratch::new(&lab.gpu, SHAPE, n_kv as u32, d as u32, 1)?;
    let span = cache.layer.span(first as u32, n as u32)?;
    let staging = cache.staging(lab, first as u32, n as u32)?;
    lab.run(|rec| {
        let step =
            KvStep { layer: &cache.layer, positions: &positions_t, span, staging: Some(&staging) };
        let gate = Gate { tensor: &gates_t, first: 0, stride: d as u32 };
        let (selected, scratch) = ((&selection, SHAPE), (&scratch, &gathered));
        let n = n as u32;
        sparse_attention::record(rec, &q_t, Some(gate), step, selected, scratch, &out, n, scale)
    })?;
    let sums = q.chunks(d).enumerate().flat_map(|(i, q)| {
        let position = positions[i / n_head];
        let ratio = SHAPE.ratio;
        let tail = SHAPE.complete(position) * ratio..position + 1;
        let blocks = chosen[i / n_head].iter().flat_map(|b| b * ratio..(b + 1) * ratio);
        cache.attend(q, i % n_head, blocks.chain(tail).map(|token| token as usize), scale)
    });
    let want = sums.zip(&gates).map(|(sum, gate)| sum * sigmoid(f64::from(*gate)));
    Ok(vec![Deviation::of("out", lab.values(&out)?, want, LIMIT)])
}
