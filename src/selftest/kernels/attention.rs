//! Writes to the KV cache, and attention over all of it.

use super::KernelCheck;
use crate::{
    Result,
    gpu::{Buf, Heap},
    kv::{KvLayer, KvStep, PAGE, Staging},
    model::rope::RopeKind,
    ops::{
        attention::{self, AttentionScratch, Gate},
        kv_write,
        reference::{
            Deviation,
            attention::attend,
            cached::{cached, rounding, uncached},
            random, rope, sigmoid, wide,
        },
        rope::{HeadNorm, RopeTable, Rotation},
    },
    selftest::lab::Lab,
};

/// Heads of queries and keys, and their values.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) n_head: usize,
    pub(super) n_kv: usize,
    pub(super) d: usize,
}

const NARROW: Geometry = Geometry { n_head: 16, n_kv: 2, d: 128 };
pub(super) const WIDE: Geometry = Geometry { n_head: 24, n_kv: 2, d: 256 };
pub(super) const LIMIT: f64 = 1e-5;
/// Random queries and keys have nothing in common: without it all weights are nearly equal.
pub(super) const SHARP: f32 = 8.0;

/// `host`: the device also reads and writes host memory in place.
pub(super) fn checks(host: bool) -> Vec<KernelCheck> {
    let cases = [(NARROW, false), (WIDE, true)].into_iter().flat_map(|(geometry, gated)| {
        [("decode", 700, 1), ("prefill", 200, 40)].map(|(kind, first, n)| {
            let name = format!("attention {kind}, heads of {}", geometry.d);
            KernelCheck::new(name, move |lab| {
                attention(lab, Heap::Device, geometry, gated, (first, n))
            })
        })
    });
    let mut all = vec![KernelCheck::new("cache write", |lab| write(lab, Heap::Device))];
    all.extend(cases);
    if host {
        let decode = |lab: &Lab| attention(lab, Heap::Host, WIDE, true, (700, 1));
        all.push(KernelCheck::new("cache write, host memory", |lab| write(lab, Heap::Host)));
        all.push(KernelCheck::new("attention decode, host memory", decode));
    }
    all
}

/// A cache of random rows on the device, and the values that they stand for.
pub(super) struct Cache {
    pub(super) layer: KvLayer,
    k: Vec<f64>,
    v: Vec<f64>,
    geometry: Geometry,
}

impl Cache {
    pub(super) fn new(lab: &Lab, heap: Heap, geometry: Geometry, tokens: usize) -> Result<Self> {
        let Geometry { n_kv, d, .. } = geometry;
        let (k_type, v_type) = lab.cache;
        let mut layer = KvLayer::new(&lab.gpu, n_kv as u32, d as u32, k_type, v_type)?;
        layer.ensure(&lab.gpu, tokens as u32, 1 << 20, heap)?;
        let fill = |ty, seed, buf: &Buf| -> Result<Vec<f64>> {
            let bytes = cached(ty, &random(seed, tokens * n_kv * d), n_kv * d);
            lab.gpu.upload(buf, 0, &bytes)?;
            Ok(wide(&uncached(ty, &bytes, n_kv * d)))
        };
        let segment = &layer.segments()[0];
        let (k, v) = (fill(k_type, 1, &segment.k)?, fill(v_type, 2, &segment.v)?);
        Ok(Self { layer, k, v, geometry })
    }

    /// Room to copy the cache through, with the rows that a step of `n` tokens from position
    /// `first` on leaves there.
    pub(super) fn staging(&self, lab: &Lab, first: u32, n: u32) -> Result<Staging> {
        let staging = Staging::new(&lab.gpu, &self.layer, n, first + n)?;
        staging.clear(&lab.gpu);
        staging.begin(&lab.gpu, first, n)?;
        let (segment, chunk) = (&self.layer.segments()[0], &staging.chunk);
        let (k_row, v_row) = self.layer.row_bytes();
        let page = u64::from(first / PAGE * PAGE);
        for (from, to, row) in [(&segment.k, &chunk.k, k_row), (&segment.v, &chunk.v, v_row)] {
            let bytes = lab.gpu.read(from, page * row, u64::from(chunk.tokens) * row)?;
            lab.gpu.upload(to, 0, &bytes)?;
        }
        Ok(staging)
    }

    /// Attention of head `h` of a query to the tokens `seen`.
    pub(super) fn attend(
        &self,
        q: &[f32],
        h: usize,
        seen: impl Iterator<Item = usize>,
        scale: f32,
    ) -> Vec<f64> {
        let Geometry { n_head, n_kv, d } = self.geometry;
        let at = |token: usize| (token * n_kv + h * n_kv / n_head) * d;
        let row = |token| (&self.k[at(token)..at(token) + d], &self.v[at(token)..at(token) + d]);
        attend(q, seen.map(row), scale.into())
    }
}

/// `n` queries from position `first` on.
fn attention(
    lab: &Lab,
    heap: Heap,
    geometry: Geometry,
    gated: bool,
    (first, n): (usize, usize),
) -> Result<Vec<Deviation>> {
    let Geometry { n_head, d, .. } = geometry;
    let (row, scale) = (n_head * d, SHARP / (d as f32).sqrt());
    let cache = Cache::new(lab, heap, geometry, first + n)?;
    let (q, gates) = (random(3, n * row), random(4, n * row));
    let (q_t, gates_t, out) =
        (lab.upload(&q, row)?, lab.upload(&gates, row)?, lab.scratch(n, row)?);
    let positions = lab.upload_words(&(first as u32..(first + n) as u32).collect::<Vec<_>>())?;
    let scratch = AttentionScratch::new(&lab.gpu, n_head as u32, d as u32, n as u32, 1)?;
    let span = cache.layer.span(first as u32, n as u32)?;
    lab.run(|rec| {
        let step = KvStep { layer: &cache.layer, positions: &positions, span, staging: None };
        let gate = gated.then_some(Gate { tensor: &gates_t, first: 0, stride: d as u32 });
        attention::record(rec, &q_t, gate, step, &scratch, &out, n as u32, scale)
    })?;
    let sums = q
        .chunks(d)
        .enumerate()
        .flat_map(|(i, q)| cache.attend(q, i % n_head, 0..first + i / n_head + 1, scale));
    let gate = |v: f32| if gated { sigmoid(v.into()) } else { 1.0 };
    let want = sums.zip(&gates).map(|(sum, v)| sum * gate(*v));
    Ok(vec![Deviation::of("out", lab.values(&out)?, want, lab.attention_limit(n))])
}

/// Keys, normed and rotated, and values of a few tokens.
fn write(lab: &Lab, heap: Heap) -> Result<Vec<Deviation>> {
    const TOKENS: usize = 5;
    const N_KV: usize = 2;
    const D: usize = 256;
    let (k_type, v_type) = lab.cache;
    let frequencies = rope::frequencies(64, 1e7);
    let rope = RopeTable::new(frequencies.clone(), 1.0);
    let table = rope.tensor(&lab.gpu, TOKENS as u32)?;
    rope.write(&lab.gpu, 0, TOKENS as u32, &table)?;
    let [k, v] = [1, 2].map(|seed| random(seed, TOKENS * N_KV * D));
    let (k_t, v_t) = (lab.upload(&k, N_KV * D)?, lab.upload(&v, N_KV * D)?);
    let gamma = random(3, D);
    let gamma_t = lab.upload(&gamma, D)?;
    let mut layer = KvLayer::new(&lab.gpu, N_KV as u32, D as u32, k_type, v_type)?;
    layer.ensure(&lab.gpu, TOKENS as u32, 1 << 20, heap)?;
    let positions = lab.upload_words(&(0..TOKENS as u32).collect::<Vec<_>>())?;
    lab.run(|rec| {
        let step = KvStep {
            layer: &layer,
            positions: &positions,
            span: layer.span(0, TOKENS as u32)?,
            staging: None,
        };
        let norm = HeadNorm { gamma: &gamma_t, eps: 1e-6 };
        let rotation = Rotation { table: &table, kind: RopeKind::Neox };
        kv_write::record(rec, (&k_t, &v_t), Some(norm), rotation, step, TOKENS as u32)
    })?;
    let turned = k.chunks(D).enumerate().flat_map(|(i, head)| {
        let position = (i / N_KV) as u32;
        rope::turn(head, Some((&gamma, 1e-6)), &frequencies, RopeKind::Neox, position)
    });
    let segment = &layer.segments()[0];
    let rows = |ty, buf| lab.cached(ty, buf, TOKENS, N_KV * D);
    let (keys, values) = (rows(k_type, &segment.k)?, rows(v_type, &segment.v)?);
    Ok(vec![
        Deviation::of("key", keys, turned, rounding(k_type)),
        Deviation::of("value", values, v, rounding(v_type)),
    ])
}
