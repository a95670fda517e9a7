//! Attention over selected blocks.

use super::{
    KernelCheck,
    attention::{Cache, Geometry, LIMIT, SHARP, WIDE},
};
use crate::{
    Result,
    gpu::Heap,
    kv::{IndexShape, KvLayer, KvStep, KvType},
    ops::{
        attention::{AttentionScratch, Gate},
        host_rows::{self, HostRows},
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
        all.push(KernelCheck::new("count of rows in host memory", rows_on_host));
    }
    all
}

/// For each of some positions as many blocks as a query may select, at random.
fn choices(positions: &[u32]) -> Vec<Vec<u32>> {
    let choice = |p: &u32| {
        let scores = random(u64::from(*p), SHAPE.complete(*p) as usize);
        let bits: Vec<u32> = scores.iter().map(|v| v.to_bits()).collect();
        largest(&bits, SHAPE.most() as usize)
    };
    positions.iter().map(choice).collect()
}

/// The tokens that the query at `position` attends to.
fn attended(position: u32, blocks: &[u32]) -> impl Iterator<Item = u32> {
    let ratio = SHAPE.ratio;
    let tail = SHAPE.complete(position) * ratio..position + 1;
    blocks.iter().flat_map(move |b| b * ratio..(b + 1) * ratio).chain(tail)
}

/// Of a cache whose first segment is on the device and whose second is not.
fn rows_on_host(lab: &Lab) -> Result<Vec<Deviation>> {
    let mut layer = KvLayer::new(&lab.gpu, 1, 8, KvType::F16, KvType::F16)?;
    layer.ensure(&lab.gpu, 1, 1 << 20, Heap::Device)?;
    let near = layer.capacity();
    layer.ensure(&lab.gpu, near + 1, 1 << 20, Heap::Host)?;
    let positions = [near + 8, near + 501, near + 1002];
    let n = positions.len() as u32;
    let chosen = choices(&positions);
    let selection =
        Selection { blocks: lab.upload_words(&chosen.concat())?, rows: n, most: SHAPE.most() };
    let positions_t = lab.upload_words(&positions)?;
    let counts = HostRows::new(&lab.gpu)?;
    counts.clear(&lab.gpu);
    let span = layer.span(positions[0], layer.capacity() - positions[0])?;
    lab.run(|rec| {
        let step = KvStep { layer: &layer, positions: &positions_t, span, staging: None };
        host_rows::record(rec, step, (&selection, SHAPE), &counts, n)
    })?;
    let on_host = |(position, blocks): (&u32, &Vec<u32>)| {
        attended(*position, blocks).filter(|token| *token >= near).count()
    };
    let want: usize = positions.iter().zip(&chosen).map(on_host).sum();
    // A step of several tokens that copies the history: the second counter's low word.
    let got = lab.words(&counts.0, 6)?;
    let [got, want] = [got, vec![0, 0, want as u32, 0, 0, 0]]
        .map(|words| words.into_iter().map(f64::from).collect::<Vec<_>>());
    Ok(vec![Deviation::of("rows", got, want, 0.0)])
}

/// `n` queries from position `first` on, each with a selection of its own.
fn attention(lab: &Lab, heap: Heap, (first, n): (usize, usize)) -> Result<Vec<Deviation>> {
    let Geometry { n_head, n_kv, d } = WIDE;
    let (row, scale) = (n_head * d, SHARP / (d as f32).sqrt());
    let cache = Cache::new(lab, heap, WIDE, first + n)?;
    let positions: Vec<u32> = (first as u32..(first + n) as u32).collect();
    let chosen = choices(&positions);
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
        let seen = attended(positions[i / n_head], &chosen[i / n_head]);
        cache.attend(q, i % n_head, seen.map(|token| token as usize), scale)
    });
    let want = sums.zip(&gates).map(|(sum, gate)| sum * sigmoid(f64::from(*gate)));
    Ok(vec![Deviation::of("out", lab.values(&out)?, want, LIMIT)])
}
