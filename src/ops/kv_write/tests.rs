//! What the cache holds of values that types find hard. Attention's tests cover norm and rotation.

use super::*;
use crate::{
    gpu::Heap,
    kv::{KvLayer, KvType},
    ops::{
        reference::{cached::uncached, rope as reference, wide},
        rope::RopeTable,
        testing::{TestDevice, assert_stored, each_device, random},
    },
};

const D: usize = 64;
const N_KV: usize = 3;

/// Heads of random values, each with something of its own.
fn hard_heads() -> Vec<f32> {
    let mut values = random(7, 16 * N_KV * D);
    for (i, head) in values.chunks_mut(D).enumerate() {
        match i % 12 {
            0 => head.fill(0.0),
            1 => head.iter_mut().for_each(|v| *v *= 1e-9),
            2 => head.iter_mut().for_each(|v| *v *= 3e-5),
            3 => head.iter_mut().for_each(|v| *v *= 1e6),
            4 => head.iter_mut().for_each(|v| *v *= 1e9),
            5 => head[40] = f32::NAN,
            6 => head[3] = f32::INFINITY,
            7 => head[31] = f32::NEG_INFINITY,
            8 => head.iter_mut().for_each(|v| *v = -v.abs()),
            9 => head[32..].fill(-0.75),
            _ => {}
        }
    }
    values
}

/// Writes tokens from position `first` on into segments of 8 and compares all of them.
fn check(t: &TestDevice, k_type: KvType, v_type: KvType, first: u32) {
    let (width, values) = (N_KV * D, hard_heads());
    let n = (values.len() / width) as u32;
    let kv = KvLayer::new(&t.gpu, N_KV as u32, D as u32, k_type, v_type).unwrap();
    let mut kv = kv.with_segments_of(KvType::TILE);
    kv.ensure(&t.gpu, first + n, 100, Heap::Device).unwrap();
    let (k, v) = (t.upload(&values, width), t.upload(&values, width));
    let positions = t.upload_words(&(first..first + n).collect::<Vec<_>>());
    // No pair rotates: keys are stored as they are.
    let rope = RopeTable::new(vec![0.0], 1.0);
    let table = rope.tensor(&t.gpu, n).unwrap();
    rope.write(&t.gpu, first, n, &table).unwrap();
    let rotation = Rotation { table: &table, kind: RopeKind::Norm };
    let step = KvStep {
        layer: &kv,
        positions: &positions,
        span: kv.span(first, n).unwrap(),
        staging: None,
    };
    t.run(|rec| record(rec, (&k, &v), None, rotation, step, n));
    for side in [0, 1] {
        let mut got = Vec::new();
        for segment in kv.segments() {
            let (buf, ty) = [(&segment.k, k_type), (&segment.v, v_type)][side];
            got.extend(uncached(ty, &t.gpu.read(buf, 0, buf.size()).unwrap(), width));
        }
        let written = &got[first as usize * width..][..values.len()];
        assert_stored([k_type, v_type][side], written, &wide(&values));
    }
}

#[test]
fn values_that_types_find_hard() {
    each_device(|t| {
        for (i, k_type) in KvType::ALL.into_iter().enumerate() {
            let v_type = KvType::ALL[(i + 2) % 5];
            check(t, k_type, v_type, [0, 5, 8, 31, 3][i]);
        }
    });
}

#[test]
fn norm_and_rotation_before_quantisation() {
    each_device(|t| {
        let (n, d) = (5, 128);
        let kv = KvLayer::new(&t.gpu, 2, d as u32, KvType::Q8_0, KvType::Q8_0).unwrap();
        let mut kv = kv.with_segments_of(KvType::TILE);
        kv.ensure(&t.gpu, 8, 8, Heap::Device).unwrap();
        let (x, gamma) = (random(1, n * 2 * d), random(2, d));
        let (k, gamma_t) = (t.upload(&x, 2 * d), t.upload(&gamma, d));
        let positions = t.upload_words(&(0..n as u32).collect::<Vec<_>>());
        let frequencies = reference::frequencies(d, 1e4);
        let rope = RopeTable::new(frequencies.clone(), 1.0);
        let table = rope.tensor(&t.gpu, n as u32).unwrap();
        rope.write(&t.gpu, 0, n as u32, &table).unwrap();
        for kind in [RopeKind::Norm, RopeKind::Neox] {
            let rotation = Rotation { table: &table, kind };
            let norm = Some(HeadNorm { gamma: &gamma_t, eps: 1e-6 });
            let step = KvStep {
                layer: &kv,
                positions: &positions,
                span: kv.span(0, n as u32).unwrap(),
                staging: None,
            };
            t.run(|rec| record(rec, (&k, &k), norm, rotation, step, n as u32));
            let turned = (x.chunks(d).enumerate()).flat_map(|(i, head)| {
                let norm = Some((gamma.as_slice(), 1e-6));
                reference::turn(head, norm, &frequencies, kind, (i / 2) as u32)
            });
            let buf = &kv.segments()[0].k;
            let got = uncached(KvType::Q8_0, &t.gpu.read(buf, 0, buf.size()).unwrap(), 2 * d);
            assert_stored(KvType::Q8_0, &got[..n * 2 * d], &turned.collect::<Vec<_>>());
        }
    });
}
