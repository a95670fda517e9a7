// y[t] = `copies` times W[ids[t]], dequantised. One invocation a run of 16 weights; reads a row's blocks, writes
// it as f32. A table in parts is looked up part by part; an id past the table means its last row.

#import shared/grid
#import shared/part
#import quant/$format

struct Params {
    part: Part,
    width: u32,
    table_rows: u32,
    n: u32,
    copies: u32,
}

@group(0) @binding(0) var<storage, read> w: array<Unit>;   // [part.rows][width], blocks
@group(0) @binding(1) var<storage, read> ids: array<u32>;       // [n]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [n][copies][width]
@group(0) @binding(8) var<uniform> p: Params;

const WG: u32 = 64u;
const RUNS: u32 = BLOCK / 16u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let run = flat_workgroup(id, groups) * WG + local;
    let row_runs = p.part.row_blocks * RUNS;
    let t = run / row_runs;
    if t >= p.n { return; }
    let row = min(ids[t], p.table_rows - 1u) - p.part.first_row;
    if row >= p.part.rows { return; }
    let block = run % row_runs / RUNS;
    let weights = load_run(row * p.part.row_blocks + block, run % RUNS);
    let i = block * BLOCK + run_start(run % RUNS);
    for (var copy = t * p.copies; copy < (t + 1u) * p.copies; copy++) {
        put(copy, i, weights[0]);
        put(copy, i + 4u, weights[1]);
        put(copy, i + 8u, weights[2]);
        put(copy, i + 12u, weights[3]);
    }
}

fn put(row: u32, i: u32, v: vec4<f32>) {
    let start = row * p.width + i;
    if i < p.width { y[start] = v.x; }
    if i + 1u < p.width { y[start + 1u] = v.y; }
    if i + 2u < p.width { y[start + 2u] = v.z; }
    if i + 3u < p.width { y[start + 3u] = v.w; }
}
