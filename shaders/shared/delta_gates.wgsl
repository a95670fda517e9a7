// Gates of the delta rule (spec/architectures.md 1.4 step 5).

#import shared/activation

// ln(1 + y) for y in 0 .. 1 as 2 atanh(y / (2 + y)): log(1 + y) has no digits left near 0, where
// slow decays live.
fn log1p_unit(y: f32) -> f32 {
    let s = y / (2.0 + y);
    let q = s * s;
    let rest = 1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0 + q * (1.0 / 15.0)));
    return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * rest))));
}

fn softplus(x: f32) -> f32 {
    return max(x, 0.0) + log1p_unit(exp(-abs(x)));
}

// g <= 0, the logarithm of the decay. Bounded from below where exp(g) is 0 in f32 anyway, so that
// sums of many stay exact enough.
fn log_decay(alpha: f32, dt_bias: f32, ssm_a: f32) -> f32 {
    return max(softplus(alpha + dt_bias) * ssm_a, -104.0);
}

// 1 / |x| as the L2 norm of q and k wants it, from the sum of squares.
fn inverse_norm(squares: f32) -> f32 {
    return inverseSqrt(squares + 1e-6);
}
