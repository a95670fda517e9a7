// What the products share: a part of W in blocks, rows of x, rows of y.

#import shared/part
#import quant/$format
#if !EDGE
#if !whole
#import shared/activations
#endif
#endif
#import shared/epilogue

struct Params {
    part: Part,
    n_in: u32,
    n_out: u32,     // rows of one matrix
    n: u32,         // rows of y
    epilogue: u32,
    // Only with `experts`:
    n_expert: u32,  // matrices in the stack
    first: u32,     // pair (token, slot) that y row 0 belongs to
    x_first: u32,   // x row of that pair
    share: u32,     // pairs that have an x row in common
    row_tiles: u32, // tiles along the rows of one matrix
}

@group(0) @binding(0) var<storage, read> w: array<Unit>;   // [part.rows][n_in], blocks
#if EDGE
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;   // `f16_rows.wgsl`
#else
#if whole
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;   // [n][n_in / 32][5] (`shared/quantise`)
#else
#if odd
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [n][n_in]
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;   // [n][n_in / 4]
#endif
#endif
#endif
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [n][n_out], gated: [n][n_out / 2]
@group(0) @binding(8) var<uniform> p: Params;
