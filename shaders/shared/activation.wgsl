// exp stays finite: past -80 the result is 0 to f32's precision.
fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-max(x, -80.0)));
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}
