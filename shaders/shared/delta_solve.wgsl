// Forward substitution with I + A of the chunked delta rule, A strictly lower triangular. The lower
// half is in `tile`, column by column in quads of rows, by blocks of 16 columns.

// Place of rows 4 rows .. 4 rows + 3 of column j; rows >= 4 (j / 16).
fn entry(j: u32, rows: u32) -> u32 {
    let block = j / 16u;
    return 256u * block - 32u * block * (block - 1u) + j % 16u * (16u - 4u * block)
        + rows - 4u * block;
}

// acc minus A's columns 4 quad .. 4 quad + 3 times x, for four rows.
fn eliminate(acc: vec4<f32>, x: vec4<f32>, quad: u32, rows: u32) -> vec4<f32> {
    let at = entry(4u * quad, rows);
    let next = 16u - 4u * (quad / 4u);
    return acc - (x.x * tile[at] + x.y * tile[at + next] + x.z * tile[at + 2u * next]
        + x.w * tile[at + 3u * next]);
}

// Forward substitution inside four rows: A has zeros on and above the diagonal.
fn solve(rhs: vec4<f32>, rows: u32) -> vec4<f32> {
    let at = entry(4u * rows, rows);
    let next = 16u - 4u * (rows / 4u);
    var x = rhs - rhs.x * tile[at];
    x -= x.y * tile[at + next];
    return x - x.z * tile[at + 2u * next];
}
