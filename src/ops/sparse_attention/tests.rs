//! Attention over given selections against f64. Every row that a query must not read is NaN.

use super::*;
use crate::{
    gpu::Heap,
    kv::{FEW, KvLayer, KvType, PAGE, Staging},
    ops::{
        reference::{
            attention::attend,
            cached::{cached, stored},
            sigmoid, wide,
        },
        testing::{TestDevice, assert_close, each_device, random},
    },
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

#[derive(Clone, Copy)]
struct Case {
    n_head: usize,
    n_kv: usize,
    d: usize,
    k_type: KvType,
    v_type: KvType,
    shape: IndexShape,
    segment: u32,
}

const SHAPE: IndexShape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 32 };

const PLAIN: Case = Case {
    n_head: 6,
    n_kv: 2,
    d: 32,
    k_type: KvType::F16,
    v_type: KvType::F32,
    shape: SHAPE,
    segment: 64,
};

impl Case {
    /// The query at `position` selects these blocks: all, or a random choice with the first and
    /// the last one in it now and then.
    fn choose(&self, position: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
        let mut blocks: Vec<u32> = (0..self.shape.complete(position)).collect();
        while blocks.len() > self.shape.most() as usize {
            blocks.remove(rng.random_range(0..blocks.len()));
        }
        blocks
    }

    fn tokens(&self, position: u32, blocks: &[u32]) -> Vec<u32> {
        let ratio = self.shape.ratio;
        let tail = self.shape.complete(position) * ratio..position + 1;
        blocks.iter().flat_map(|b| b * ratio..(b + 1) * ratio).chain(tail).collect()
    }

    /// Queries at `first .. first + n`, which all choose alike if `same`; then what is unread by
    /// the first is NaN.
    fn check(&self, t: &TestDevice, first: u32, n: u32, same: bool) {
        self.check_in(t, Heap::Device, first, n, same);
    }

    /// [`Self::check`] of a cache in `heap`; returns what came out.
    fn check_in(&self, t: &TestDevice, heap: Heap, first: u32, n: u32, same: bool) -> Vec<f32> {
        let Self { n_head, n_kv, d, shape, .. } = *self;
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(first));
        let positions: Vec<u32> = (first..first + n).collect();
        let mut chosen: Vec<Vec<u32>> =
            positions.iter().map(|p| self.choose(*p, &mut rng)).collect();
        if same {
            // Of one block, so that no query completes another.
            assert_eq!(shape.complete(first), shape.complete(first + n - 1));
            let choice = chosen[0].clone();
            chosen.fill(choice);
        }
        let end = (first + n) as usize;
        let row = n_kv * d;
        let (mut k, mut v) = (random(1, end * row), random(2, end * row));
        let read: Vec<u32> = (positions.iter().zip(&chosen))
            .flat_map(|(p, blocks)| self.tokens(*p, blocks))
            .collect();
        for token in (0..end as u32).filter(|token| !read.contains(token)) {
            let values = token as usize * row..(token as usize + 1) * row;
            k[values.clone()].fill(f32::NAN);
            v[values].fill(f32::NAN);
        }
        let kv = KvLayer::new(&t.gpu, n_kv as u32, d as u32, self.k_type, self.v_type).unwrap();
        let page = u64::from(PAGE) * kv.bytes_per_token();
        let mut kv = kv.with_segments_of(self.segment).with_staging(page);
        kv.ensure(&t.gpu, end as u32, 1 << 20, heap).unwrap();
        let staging = (heap == Heap::Host).then(|| {
            let staging = Staging::new(&t.gpu, &kv, n, end as u32).unwrap();
            staging.clear(&t.gpu);
            staging.begin(&t.gpu, first, n).unwrap();
            let (own, at) = (first as usize * n_kv * d.., u64::from(first % PAGE));
            let (k_row, v_row) = kv.row_bytes();
            let (k, v) =
                (cached(self.k_type, &k[own.clone()], row), cached(self.v_type, &v[own], row));
            t.gpu.upload(&staging.chunk.k, at * k_row, &k).unwrap();
            t.gpu.upload(&staging.chunk.v, at * v_row, &v).unwrap();
            staging
        });
        for s in kv.segments() {
            let values = s.first as usize * row..end.min((s.first + s.tokens) as usize) * row;
            t.gpu.upload(&s.k, 0, &cached(self.k_type, &k[values.clone()], row)).unwrap();
            t.gpu.upload(&s.v, 0, &cached(self.v_type, &v[values], row)).unwrap();
        }
        let q = random(3, n as usize * n_head * d);
        let gates = random(4, n as usize * n_head * d);
        let selection = self.selection(t, &chosen);
        let (q_t, gate_t) = (t.upload(&q, n_head * d), t.upload(&gates, n_head * d));
        let gate = Gate { tensor: &gate_t, first: 0, stride: d as u32 };
        let positions_t = t.upload_words(&positions);
        let span = kv.span(first, n).unwrap();
        let step = KvStep { layer: &kv, positions: &positions_t, span, staging: staging.as_ref() };
        let scratch = AttentionScratch::new(&t.gpu, n_head as u32, d as u32, n, 1).unwrap();
        let gathered = GatherScratch::new(&t.gpu, shape, n_kv as u32, d as u32, 1).unwrap();
        let out = t.scratch(n as usize, n_head * d);
        t.run(|rec| {
            let selected = (&selection, shape);
            let scratch = (&scratch, &gathered);
            record(rec, &q_t, Some(gate), step, selected, scratch, &out, n, 0.25)
        });
        let (k, v) = (wide(&stored(self.k_type, &k, row)), wide(&stored(self.v_type, &v, row)));
        let mut want = Vec::new();
        for (i, (position, blocks)) in positions.iter().zip(&chosen).enumerate() {
            let tokens = self.tokens(*position, blocks);
            assert_eq!(tokens.len() as u32, shape.attended(*position));
            for h in 0..n_head {
                let head = (i * n_head + h) * d..(i * n_head + h + 1) * d;
                let rows = tokens.iter().map(|t| {
                    let at = (*t as usize * n_kv + h * n_kv / n_head) * d;
                    (&k[at..at + d], &v[at..at + d])
                });
                let gated = |(v, gate): (f64, &f32)| v * sigmoid(f64::from(*gate));
                let sums = attend(&q[head.clone()], rows, 0.25);
                want.extend(sums.into_iter().zip(&gates[head]).map(gated));
            }
        }
        let out = t.read(&out);
        assert_close(&out, &want, 3e-6);
        if let Some(staging) = &staging {
            // Pages that are read, less what is not history.
            let pages: BTreeSet<u32> = read.iter().map(|token| token / PAGE).collect();
            let rows = pages.iter().map(|page| first.saturating_sub(page * PAGE).min(PAGE));
            let copied = if n > FEW { u64::from(rows.sum::<u32>()) } else { 0 };
            assert_eq!(staging.copied(&t.gpu).unwrap(), copied * kv.bytes_per_token());
        }
        out
    }

    fn selection(&self, t: &TestDevice, chosen: &[Vec<u32>]) -> Selection {
        let most = self.shape.most();
        let words: Vec<u32> = (chosen.iter())
            .flat_map(|c| c.iter().copied().chain(vec![u32::MAX; most as usize - c.len()]))
            .collect();
        Selection { blocks: t.upload_words(&words), rows: chosen.len() as u32, most }
    }
}

#[test]
fn decode_reads_only_what_is_selected() {
    each_device(|t| {
        // Around the budget, the borders of blocks and of segments.
        for first in [0, 3, 4, 31, 34, 35, 36, 63, 64, 127, 128, 300, 515] {
            PLAIN.check(t, first, 1, false);
        }
    });
}

#[test]
fn queries_of_one_step_with_one_choice() {
    each_device(|t| PLAIN.check(t, 300, 3, true));
}

#[test]
fn queries_of_one_step_each_with_its_own() {
    each_device(|t| {
        for (first, n) in [(0, 130), (50, 64), (500, 3), (255, 2)] {
            PLAIN.check(t, first, n, false);
        }
    });
}

#[test]
fn only_pages_that_are_read_leave_host_memory() {
    each_device(|t| {
        if !t.gpu.caps().host_buffers {
            return;
        }
        let case = Case { segment: 256, ..PLAIN };
        // Alike, queries leave most pages alone.
        let few = IndexShape { ratio: 16, budget: 64, ..SHAPE };
        let alike = Case { shape: few, segment: 2048, ..PLAIN };
        for (case, first, n, same) in [
            (case, 50, 90, false),
            (case, 500, 9, false),
            (alike, 4096, 15, true),
            (case, 300, 3, true),
        ] {
            let of = |heap| case.check_in(t, heap, first, n, same);
            assert!(of(Heap::Device) == of(Heap::Host), "{n} from {first}");
        }
    });
}

#[test]
fn groups_and_types() {
    each_device(|t| {
        let case = Case { n_head: 12, n_kv: 1, k_type: KvType::F32, v_type: KvType::F16, ..PLAIN };
        case.check(t, 200, 5, false);
        let shape = IndexShape { ratio: 1, budget: 5, ..SHAPE };
        Case { shape, segment: 16, ..PLAIN }.check(t, 60, 9, false);
    });
}

/// With rows whose parts are a whole number of 16-byte units, and with others.
#[test]
fn every_type_on_either_side() {
    each_device(|t| {
        for (k_type, v_type, n_kv) in [
            (KvType::Q8_0, KvType::Q4_0, 4),
            (KvType::Q4_0, KvType::Bf16, 1),
            (KvType::Bf16, KvType::Q8_0, 3),
        ] {
            let case = Case { n_head: 2 * n_kv, n_kv, d: 64, k_type, v_type, ..PLAIN };
            case.check(t, 203, 1, false);
            case.check(t, 60, 9, false);
        }
    });
}

#[test]
fn a_wide_budget_is_split() {
    let shape = IndexShape { budget: 2048, ..SHAPE };
    each_device(|t| {
        Case { shape, segment: 4096, ..PLAIN }.check(t, 5000, 1, false);
    });
}

#[test]
fn a_selection_for_others_is_refused() {
    each_device(|t| {
        let mut kv = KvLayer::new(&t.gpu, 2, 32, KvType::F16, KvType::F16).unwrap();
        kv.ensure(&t.gpu, 10, 100, Heap::Device).unwrap();
        let positions = t.upload_words(&[0, 1]);
        let span = kv.span(0, 2).unwrap();
        let step = KvStep { layer: &kv, positions: &positions, span, staging: None };
        let scratch = AttentionScratch::new(&t.gpu, 2, 32, 2, 1).unwrap();
        let gathered = GatherScratch::new(&t.gpu, SHAPE, 2, 32, 1).unwrap();
        let scratch = (&scratch, &gathered);
        let (q, out) = (t.scratch(2, 64), t.scratch(2, 64));
        let selection = Selection::new(&t.gpu, SHAPE, 1).unwrap();
        let mut rec = Recorder::new(&t.gpu);
        for (shape, n) in [(SHAPE, 2), (IndexShape { budget: 64, ..SHAPE }, 1)] {
            let selected = (&selection, shape);
            let refused =
                record(&mut rec, &q, None, step, selected, scratch, &out, n, 1.0).is_err();
            assert!(refused, "{n} queries");
        }
    });
}
