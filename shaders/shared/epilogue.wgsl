// What happens to a finished dot product (`ops::product::Epilogue`, same numbers).
const STORE: u32 = 0u;
const ADD: u32 = 1u;
const SILU: u32 = 2u;
const MULTIPLY: u32 = 3u;
const GATED: u32 = 4u;  // rows alternate gate and up: y = silu(gate) * up

// v / (1 + exp(-v)): for large negative v the quotient by infinity is 0.
fn silu(v: f32) -> f32 {
    return v / (1.0 + exp(-v));
}

fn finish(i: u32, product: f32) {
    var v = product;
    switch p.epilogue {
        case ADD: { v += y[i]; }
        case SILU: { v = silu(v); }
        case MULTIPLY: { v *= y[i]; }
        default: {}
    }
    y[i] = v;
}
