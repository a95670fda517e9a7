//! Cache writes and attention together against f64.

use super::*;
use crate::{
    gpu::{Buf, Heap, MemoryKind},
    kv::{FEW, KvSegment, KvType, PAGE, Staging},
    model::rope::RopeKind,
    ops::{
        kv_write,
        reference::{attention::attend, cached::uncached, rope as reference, sigmoid, wide},
        rope::{HeadNorm, RopeTable, Rotation},
        testing::{TestDevice, assert_close, assert_stored, each_device, in_turn, random},
    },
};

/// One layer's geometry and how a sequence runs through it.
#[derive(Clone, Copy)]
struct Case {
    n_head: usize,
    n_kv: usize,
    d: usize,
    k_type: KvType,
    v_type: KvType,
    gate: bool,
    norm: bool,
    /// Tokens a segment.
    segment: u32,
    /// Added to scores: the scale is this over sqrt(d).
    sharpness: f64,
    /// Values are this large.
    loud: f32,
    /// How near what comes out has to be.
    near: f64,
}

const PLAIN: Case = Case {
    n_head: 4,
    n_kv: 2,
    d: 64,
    k_type: KvType::F32,
    v_type: KvType::F32,
    gate: false,
    norm: false,
    segment: 1024,
    sharpness: 1.0,
    loud: 1.0,
    near: 3e-6,
};

/// A sequence's inputs.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    gamma: Vec<f32>,
}

impl Case {
    fn scale(&self) -> f64 {
        self.sharpness / (self.d as f64).sqrt()
    }

    fn sequence(&self, tokens: usize) -> Sequence {
        let d = self.d;
        Sequence {
            q: random(1, tokens * self.n_head * d),
            k: random(2, tokens * self.n_kv * d),
            v: random(3, tokens * self.n_kv * d).iter().map(|v| v * self.loud).collect(),
            // Rows of (query, gate) pairs of heads, of which only the gates are used here.
            gate: random(4, tokens * self.n_head * 2 * d),
            gamma: random(5, d),
        }
    }

    /// Keys and values as stored, once they are seen to be those of the first `tokens` tokens.
    fn stored(&self, t: &TestDevice, s: &Sequence, kv: &KvLayer, tokens: usize) -> [Vec<f64>; 2] {
        let row = self.n_kv * self.d;
        let all = |ty: KvType, buf: fn(&KvSegment) -> &Buf| -> Vec<f32> {
            let read = |segment| t.gpu.read(buf(segment), 0, buf(segment).size()).unwrap();
            let rows = kv.segments().iter().flat_map(|segment| uncached(ty, &read(segment), row));
            rows.take(tokens * row).collect()
        };
        let (k, v) = (all(self.k_type, |s| &s.k), all(self.v_type, |s| &s.v));
        let frequencies = reference::frequencies(self.d / 2, 1e4);
        let norm = self.norm.then_some((s.gamma.as_slice(), 1e-6));
        let keys: Vec<f64> = (s.k[..tokens * row].chunks(self.d).enumerate())
            .flat_map(|(i, head)| {
                let position = (i / self.n_kv) as u32;
                reference::turn(head, norm, &frequencies, RopeKind::Neox, position)
            })
            .collect();
        assert_stored(self.k_type, &k, &keys);
        assert_stored(self.v_type, &v, &wide(&s.v[..tokens * row]));
        [wide(&k), wide(&v)]
    }

    /// What comes out for token `t` in f64.
    fn want(&self, s: &Sequence, [k, v]: &[Vec<f64>; 2], t: usize) -> Vec<f64> {
        let (d, group) = (self.d, self.n_head / self.n_kv);
        let head = |h: usize| {
            let at = |s: usize| (s * self.n_kv + h / group) * d;
            let rows = (0..=t).map(|s| (&k[at(s)..at(s) + d], &v[at(s)..at(s) + d]));
            let i = t * self.n_head + h;
            let gates = &s.gate[(i * 2 + 1) * d..][..d];
            let gated = |(v, gate): (f64, &f32)| {
                v * if self.gate { sigmoid(f64::from(*gate)) } else { 1.0 }
            };
            let sums = attend(&s.q[i * d..][..d], rows, self.scale());
            sums.into_iter().zip(gates).map(gated).collect::<Vec<_>>()
        };
        (0..self.n_head).flat_map(head).collect()
    }

    /// Runs the tokens of `s` in chunks that end at `ends`, each as a step of its own, and
    /// compares what each gives.
    fn check(&self, t: &TestDevice, s: &Sequence, ends: &[usize]) {
        self.check_in(t, Heap::Device, s, ends);
    }

    /// [`Self::check`] of a cache in `heap`; returns what came out.
    fn check_in(&self, t: &TestDevice, heap: Heap, s: &Sequence, ends: &[usize]) -> Vec<f32> {
        let (gpu, d) = (&t.gpu, self.d);
        let (kv_width, q_width) = (self.n_kv * d, self.n_head * d);
        let mut kv =
            KvLayer::new(gpu, self.n_kv as u32, d as u32, self.k_type, self.v_type).unwrap();
        let page = u64::from(PAGE) * kv.bytes_per_token();
        kv = kv.with_segments_of(self.segment).with_staging(page);
        let (mut all, mut copied) = (Vec::new(), 0);
        let rope = RopeTable::new(reference::frequencies(d / 2, 1e4), 1.0);
        let gamma = t.upload(&s.gamma, d);
        let norm = self.norm.then_some(HeadNorm { gamma: &gamma, eps: 1e-6 });
        // Shared by all steps, as by all layers: what one leaves must not matter to the next.
        let most = ends.iter().scan(0, |begin, end| Some(end - std::mem::replace(begin, *end)));
        let most = most.max().unwrap() as u32;
        let scratch = AttentionScratch::new(gpu, self.n_head as u32, d as u32, most, 1).unwrap();
        let staging = (heap == Heap::Host).then(|| Staging::new(gpu, &kv, most, 1 << 10).unwrap());
        staging.iter().for_each(|staging| staging.clear(gpu));
        let mut begin = 0;
        for &end in ends {
            let n = end - begin;
            let rows =
                |all: &[f32], width: usize| t.upload(&all[begin * width..end * width], width);
            let (q, k, v) = (rows(&s.q, q_width), rows(&s.k, kv_width), rows(&s.v, kv_width));
            let gates = rows(&s.gate, 2 * q_width);
            let gate =
                self.gate.then_some(Gate { tensor: &gates, first: d as u32, stride: 2 * d as u32 });
            kv.ensure(gpu, end as u32, 1 << 20, heap).unwrap();
            let positions = positions(t, begin as u32, n as u32);
            let span = kv.span(begin as u32, n as u32).unwrap();
            let step =
                KvStep { layer: &kv, positions: &positions, span, staging: staging.as_ref() };
            if let Some(staging) = &staging {
                staging.begin(gpu, begin as u32, n as u32).unwrap();
                copied += if n as u32 > FEW { begin as u64 * kv.bytes_per_token() } else { 0 };
            }
            let table = rope.tensor(gpu, n as u32).unwrap();
            rope.write(gpu, begin as u32, n as u32, &table).unwrap();
            let rotation = Rotation { table: &table, kind: RopeKind::Neox };
            let out = t.scratch(n, q_width);
            t.run(|rec| {
                kv_write::record(rec, (&k, &v), norm, rotation, step, n as u32)?;
                let scale = self.scale() as f32;
                record(rec, &q, gate, step, &scratch, &out, n as u32, scale)
            });
            let stored = self.stored(t, s, &kv, end);
            let want: Vec<f64> = (begin..end).flat_map(|p| self.want(s, &stored, p)).collect();
            // Sharp scores carry their own rounding into the exponent.
            all.extend(t.read(&out));
            assert_close(&all[begin * q_width..], &want, self.near * self.sharpness.max(1.0));
            begin = end;
        }
        if let Some(staging) = &staging {
            assert_eq!(staging.copied(gpu).unwrap(), copied);
        }
        all
    }

    fn run(&self, t: &TestDevice, ends: &[usize]) {
        self.check(t, &self.sequence(*ends.last().unwrap()), ends);
    }
}

fn positions(t: &TestDevice, first: u32, n: u32) -> Buf {
    let all: Vec<u32> = (first..first + n).collect();
    let buf = t.gpu.alloc("positions", u64::from(n) * 4, MemoryKind::Scratch).unwrap();
    t.gpu.upload(&buf, 0, bytemuck::cast_slice(&all)).unwrap();
    buf
}

#[test]
fn every_head_size_and_group() {
    let sizes = [(16, 3, 3), (32, 8, 1), (40, 6, 2), (128, 12, 1), (256, 4, 1), (512, 5, 1)];
    in_turn(sizes, |t, (d, n_head, n_kv)| {
        Case { d, n_head, n_kv, ..PLAIN }.run(t, &[37, 38]);
    });
}

#[test]
fn chunks_at_any_offset_and_over_segments() {
    each_device(|t| {
        let case = Case { segment: 64, gate: true, norm: true, ..PLAIN };
        let s = case.sequence(520);
        for ends in [
            &[1, 2, 3, 66, 67, 130, 131][..],
            &[63, 64, 65, 127, 129, 192],
            &[500, 501, 503, 520],
            &[130],
        ] {
            case.check(t, &s, ends);
        }
    });
}

#[test]
fn host_memory_is_read_once_and_gives_equal_bits() {
    each_device(|t| {
        if !t.gpu.caps().host_buffers {
            return;
        }
        let case = Case { segment: 256, k_type: KvType::F16, norm: true, ..PLAIN };
        let s = case.sequence(520);
        for ends in [&[100, 230, 231, 239, 520][..], &[64, 320, 333]] {
            let of = |heap| case.check_in(t, heap, &s, ends);
            assert!(of(Heap::Device) == of(Heap::Host), "{ends:?}");
        }
    });
}

/// Each type on each side, with one head and with three, whose rows end between 16-byte units.
#[test]
fn every_cache_type_on_either_side() {
    let types = [
        (KvType::F32, KvType::F16, 2),
        (KvType::F16, KvType::Bf16, 2),
        (KvType::Bf16, KvType::F32, 2),
        (KvType::Q8_0, KvType::Q4_0, 1),
        (KvType::Q4_0, KvType::Q8_0, 3),
    ];
    in_turn(types, |t, (k_type, v_type, n_kv)| {
        let case = Case { n_head: 6, n_kv, k_type, v_type, norm: true, ..PLAIN };
        Case { gate: true, segment: 32, ..case }.run(t, &[33, 34, 70]);
    });
}

#[test]
fn wide_quantised_heads() {
    let (k_type, v_type) = (KvType::Q8_0, KvType::Q4_0);
    let wide = Case { n_head: 2, n_kv: 1, d: 256, k_type, v_type, ..PLAIN };
    each_device(|t| wide.run(t, &[1, 2, 3, 4]));
    wide.run(&TestDevice::software(), &[1, 2]);
}

#[test]
fn scores_past_the_range_of_exp() {
    each_device(|t| {
        Case { sharpness: 300.0, segment: 32, ..PLAIN }.run(t, &[70, 71, 72]);
    });
}

#[test]
fn values_of_a_million() {
    let types = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0, KvType::Q4_0];
    in_turn(types, |t, v_type| Case { loud: 1e6, v_type, ..PLAIN }.run(t, &[20, 21]));
}

#[test]
fn more_queries_than_one_dispatch_takes() {
    each_device(|t| Case { n_head: 1, n_kv: 1, d: 8, ..PLAIN }.run(t, &[600]));
}

/// Queries, keys and weights have 11 bits there.
const MATRICES: Case =
    Case { d: 128, k_type: KvType::F16, v_type: KvType::F16, near: 2e-3, ..PLAIN };

#[test]
fn cooperative_matrices_attend_alike() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for (n_head, n_kv, ends) in [(4, 2, &[37, 38, 147][..]), (12, 1, &[70, 131]), (5, 1, &[3, 8])] {
        Case { n_head, n_kv, gate: true, segment: 64, ..MATRICES }.run(&t, ends);
    }
    Case { d: 256, ..MATRICES }.run(&t, &[70]);
    assert!(t.gpu.kernel_names().iter().any(|k| k.starts_with("coop_attention")));
}

#[test]
fn cooperative_matrices_attend_to_every_type_that_fits() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for (k_type, v_type) in
        [(KvType::F16, KvType::Q8_0), (KvType::Q8_0, KvType::Q4_0), (KvType::Q4_0, KvType::F16)]
    {
        Case { k_type, v_type, ..MATRICES }.run(&t, &[40]);
    }
}

/// Largest scores grow from tile to tile, and sums are joined.
#[test]
fn cooperative_matrices_take_scores_and_values_of_any_size() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for sharpness in [8.0, 300.0] {
        Case { sharpness, ..MATRICES }.run(&t, &[200]);
    }
    for v_type in [KvType::F16, KvType::Q8_0] {
        Case { loud: 1e6, v_type, ..MATRICES }.run(&t, &[200]);
    }
    let mut s = MATRICES.sequence(40);
    s.q.iter_mut().enumerate().for_each(|(i, q)| *q *= [1e6, 1e-6, 0.0][i / 128 % 3]);
    Case { sharpness: 1e-6, ..MATRICES }.check(&t, &s, &[40]);
}

/// A decode step is recorded once; the host then only writes its inputs and positions.
#[test]
fn a_recording_replays_at_every_position_of_its_span() {
    each_device(|t| {
        let case = Case { segment: 64, ..PLAIN };
        let (s, d, gpu) = (case.sequence(100), case.d, &t.gpu);
        let (kv_width, q_width) = (case.n_kv * d, case.n_head * d);
        let mut kv = KvLayer::new(gpu, case.n_kv as u32, d as u32, case.k_type, case.v_type)
            .unwrap()
            .with_segments_of(case.segment);
        kv.ensure(gpu, 128, 128, Heap::Device).unwrap();
        let span = kv.span(0, 100).unwrap();
        let positions = positions(t, 0, 1);
        let step = KvStep { layer: &kv, positions: &positions, span, staging: None };
        let rope = RopeTable::new(reference::frequencies(d / 2, 1e4), 1.0);
        let table = rope.tensor(gpu, 1).unwrap();
        let rotation = Rotation { table: &table, kind: RopeKind::Neox };
        let (q, k, v) = (t.scratch(1, q_width), t.scratch(1, kv_width), t.scratch(1, kv_width));
        let scratch = AttentionScratch::new(gpu, case.n_head as u32, d as u32, 1, 1).unwrap();
        let out = t.scratch(1, q_width);
        let mut rec = Recorder::new(gpu);
        kv_write::record(&mut rec, (&k, &v), None, rotation, step, 1).unwrap();
        record(&mut rec, &q, None, step, &scratch, &out, 1, case.scale() as f32).unwrap();
        let recording = rec.finish().unwrap();
        for p in 0..100 {
            let write = |to: &Tensor, all: &[f32]| {
                let row = &all[p * to.width as usize..][..to.width as usize];
                gpu.upload(&to.buf, 0, bytemuck::cast_slice(row)).unwrap();
            };
            write(&q, &s.q);
            write(&k, &s.k);
            write(&v, &s.v);
            gpu.upload(&positions, 0, bytemuck::bytes_of(&(p as u32))).unwrap();
            rope.write(gpu, p as u32, 1, &table).unwrap();
            gpu.submit(&recording).unwrap();
            let want = case.want(&s, &case.stored(t, &s, &kv, p + 1), p);
            assert_close(&t.read(&out), &want, 3e-6);
        }
    });
}

#[test]
fn a_long_history_is_split() {
    let plan = Plan::new((1, false), 2, 8, 256, 4096, SLOTS);
    assert_eq!((plan.shader, plan.splits), ("attention_decode", 32));
    each_device(|t| Case { n_head: 2, d: 16, ..PLAIN }.run(t, &[700, 701, 705]));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    each_device(|t| {
        let mut kv = KvLayer::new(&t.gpu, 2, 64, KvType::F16, KvType::F16).unwrap();
        kv.ensure(&t.gpu, 10, 100, Heap::Device).unwrap();
        let positions = positions(t, 0, 1);
        let span = kv.span(0, 1).unwrap();
        let step = KvStep { layer: &kv, positions: &positions, span, staging: None };
        let scratch = AttentionScratch::new(&t.gpu, 4, 64, 1, 1).unwrap();
        let out = t.scratch(1, 256);
        let mut rec = Recorder::new(&t.gpu);
        for width in [32, 192, 512] {
            let q = t.scratch(1, width);
            assert!(record(&mut rec, &q, None, step, &scratch, &out, 1, 1.0).is_err(), "{width}");
        }
        let q = t.scratch(1, 256);
        assert!(record(&mut rec, &q, None, step, &scratch, &out, 9, 1.0).is_err());
        let gate = Gate { tensor: &q, first: 64, stride: 128 };
        assert!(record(&mut rec, &q, Some(gate), step, &scratch, &out, 1, 1.0).is_err());
    });
}
