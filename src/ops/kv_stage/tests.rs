//! Copies of random bytes against the same copies on the host.

use super::*;
use crate::{
    gpu::Heap,
    kv::KvLayer,
    ops::{
        reference::random_bytes,
        testing::{TestDevice, each_device},
    },
};

const N: u32 = 100;
const STAGED: u32 = 128;

fn fill(t: &TestDevice, buf: &Buf, seed: u64) -> Vec<u8> {
    let bytes = random_bytes(seed, buf.size() as usize);
    t.gpu.upload(buf, 0, &bytes).unwrap();
    bytes
}

/// Every piece of a cache of 512 tokens, for a step of `N` tokens from `first` on.
fn check(t: &TestDevice, (k_type, v_type): (KvType, KvType), heads: (u32, u32), first: u32) {
    let kv = KvLayer::new(&t.gpu, heads.0, heads.1, k_type, v_type).unwrap();
    let bytes = u64::from(STAGED) * kv.bytes_per_token();
    let mut kv = kv.with_segments_of(256).with_staging(bytes);
    kv.ensure(&t.gpu, 512, 512, Heap::Device).unwrap();
    let staging = Staging::new(&t.gpu, &kv, N, 512).unwrap();
    staging.clear(&t.gpu);
    staging.begin(&t.gpu, first, N).unwrap();
    let positions = t.upload_words(&(first..first + N).collect::<Vec<_>>());
    let span = kv.span(first, N).unwrap();
    let step = KvStep { layer: &kv, positions: &positions, span, staging: Some(&staging) };
    let kept = [fill(t, &staging.chunk.k, 1), fill(t, &staging.chunk.v, 2)];
    let values = u64::from(heads.0 * heads.1);
    for piece in kv.pieces() {
        let from = [fill(t, &piece.segment.k, 3), fill(t, &piece.segment.v, 4)];
        t.run(|rec| record(rec, step, &piece, &staging, false, N.into()));
        for (i, (ty, out)) in
            [(k_type, &staging.piece.k), (v_type, &staging.piece.v)].into_iter().enumerate()
        {
            let got = t.gpu.read(out, 0, out.size()).unwrap();
            let row = ty.bytes(values) as usize;
            let end = (first + N).min(piece.first + piece.tokens);
            for position in piece.first..end {
                // A tile of both kinds is the segment's.
                let (buf, at) = if position / KvType::TILE * KvType::TILE < first {
                    (&from[i], position - piece.segment.first)
                } else {
                    (&kept[i], position - first / PAGE * PAGE)
                };
                let (at, to) = (at as usize * row, (position - piece.first) as usize * row);
                let same = got[to..to + row] == buf[at..at + row];
                assert!(same, "{ty}, position {position} of a step at {first}");
            }
        }
    }
    let rows = u64::from(first.min(512));
    assert_eq!(staging.copied(&t.gpu).unwrap(), rows * kv.bytes_per_token());
}

#[test]
fn history_and_own_rows_land_in_their_places() {
    each_device(|t| {
        for first in [0, 1, 63, 64, 200, 256, 330, 412] {
            check(t, (KvType::F32, KvType::F16), (2, 8), first);
        }
        check(t, (KvType::F16, KvType::F16), (3, 40), 77);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    each_device(|t| {
        let kv = KvLayer::new(&t.gpu, 1, 16, KvType::F16, KvType::F16).unwrap();
        let mut kv = kv.with_segments_of(256);
        kv.ensure(&t.gpu, 256, 512, Heap::Device).unwrap();
        let small = kv.clone().with_staging(0);
        let staging = Staging::new(&t.gpu, &small, N, 512).unwrap();
        let positions = t.upload_words(&[0]);
        let span = kv.span(0, 1).unwrap();
        let step = KvStep { layer: &kv, positions: &positions, span, staging: Some(&staging) };
        let mut rec = Recorder::new(&t.gpu);
        let whole = kv.pieces().next().unwrap();
        let part = small.pieces().next().unwrap();
        assert!(record(&mut rec, step, &whole, &staging, false, 9.into()).is_err());
        assert!(record(&mut rec, step, &part, &staging, false, 9.into()).is_ok());
        assert!(record(&mut rec, step, &part, &staging, false, (N + PAGE).into()).is_err());
    });
}
