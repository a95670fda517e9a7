// Values of one head after the optional RMSNorm and the rotation of its first n_rot values
// (spec/architectures.md 1.1, 1.2). The kernel binds x, rope and, with `norm`, gamma, and has
// n_rot, head_dim, eps in p. `neox`: pairs (i, i + n_rot/2); otherwise (2i, 2i + 1).

struct Row {
    x: u32,        // first value of the head in x
    rope: u32,     // first (cos, sin) of the token in rope
    scale: f32,    // of the norm
}

fn normed(row: Row, i: u32) -> f32 {
#if norm
    return x[row.x + i] * row.scale * gamma[i];
#else
    return x[row.x + i];
#endif
}

fn rotated(row: Row, i: u32) -> f32 {
    let value = normed(row, i);
    if i >= p.n_rot { return value; }
#if neox
    let half = p.n_rot / 2u;
    let second = i >= half;
    let pair = select(i, i - half, second);
    let other = normed(row, select(i + half, i - half, second));
#else
    let second = (i & 1u) == 1u;
    let pair = i / 2u;
    let other = normed(row, i ^ 1u);
#endif
    let turn = rope[row.rope + pair];
    return value * turn.x + select(-other, other, second) * turn.y;
}
