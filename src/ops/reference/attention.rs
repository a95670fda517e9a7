//! Attention of one query over cached rows (spec/architectures.md 1.3).

use crate::kv::KvType;
use half::f16;

/// The bytes of `values` in a cache of type `ty`.
pub(crate) fn cached(ty: KvType, values: &[f32]) -> Vec<u8> {
    match ty {
        KvType::F32 => bytemuck::cast_slice(values).to_vec(),
        KvType::F16 => (values.iter())
            .flat_map(|v| f16::from_f32(v.clamp(-65504.0, 65504.0)).to_le_bytes())
            .collect(),
    }
}

/// The values behind the bytes of a cache of type `ty`.
pub(crate) fn uncached(ty: KvType, bytes: &[u8]) -> Vec<f32> {
    match ty {
        KvType::F32 => bytemuck::pod_collect_to_vec(bytes),
        KvType::F16 => {
            bytemuck::pod_collect_to_vec::<u8, f16>(bytes).into_iter().map(f16::to_f32).collect()
        }
    }
}

/// `values` as a cache of type `ty` keeps them.
pub(crate) fn stored(ty: KvType, values: &[f32]) -> Vec<f32> {
    uncached(ty, &cached(ty, values))
}

/// `softmax(scale * q . K) . V` over `rows` of (key, value), each as wide as q.
pub(crate) fn attend<'a>(
    q: &[f32],
    rows: impl Iterator<Item = (&'a [f64], &'a [f64])>,
    scale: f64,
) -> Vec<f64> {
    let dot = |key: &[f64]| q.iter().zip(key).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
    let rows: Vec<(f64, &[f64])> = rows.map(|(k, v)| (scale * dot(k), v)).collect();
    let largest = rows.iter().map(|(score, _)| *score).fold(f64::MIN, f64::max);
    let (mut sum, mut total) = (vec![0.0; q.len()], 0.0);
    for (score, value) in rows {
        let weight = (score - largest).exp();
        total += weight;
        sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * v);
    }
    sum.iter().map(|v| v / total).collect()
}
