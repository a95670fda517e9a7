//! Attention of one query over cached rows (spec/architectures.md 1.3).

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
