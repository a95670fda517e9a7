// A round of the exact choice of the `most` largest scores of each query, ties to the lower block:
// a workgroup takes `chunk` candidates and leaves at most `most` of them, in ascending order of
// blocks. Rounds follow until one chunk holds all that is left. spec/architectures.md 4.5.4.
//
// A radix select: four times the histogram of the next 8 bits of the keys that agree with the
// threshold so far, then each lane writes from its share those above the threshold and the first
// of the equal ones. Five reads of the chunk, of which four come from cache.

#import shared/grid

const WG: u32 = 256u;

struct Params {
    groups: u32,      // workgroups in all
    parts: u32,       // of them for each query
    chunk: u32,       // candidates a workgroup takes, at least 2 * most
    most: u32,
    ratio: u32,       // tokens a block
    first: u32,       // the first query among the step's
    rounds: u32,      // that came before this one
    in_stride: u32,   // candidates a query there is room for
    out_stride: u32,
    out_first: u32,   // place of the first query in kept_blocks
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;           // [step's n]
@group(0) @binding(1) var<storage, read> keys: array<u32>;                // [n][in_stride]
@group(0) @binding(2) var<storage, read_write> kept_keys: array<u32>;     // [n][out_stride]
@group(0) @binding(3) var<storage, read_write> kept_blocks: array<u32>;   // the same, from out_first
#if blocks
@group(0) @binding(4) var<storage, read> blocks: array<u32>;              // [n][in_stride]
#endif
@group(0) @binding(8) var<uniform> p: Params;

var<workgroup> bins: array<atomic<u32>, WG>;
var<workgroup> sums: array<vec2<u32>, WG>;
var<workgroup> found: vec2<u32>;

// Sums of x over this and all lower lanes.
fn scan(lane: u32, x: vec2<u32>) -> vec2<u32> {
    workgroupBarrier();
    sums[lane] = x;
    for (var step = 1u; step < WG; step *= 2u) {
        workgroupBarrier();
        var sum = sums[lane];
        if lane >= step { sum += sums[lane - step]; }
        workgroupBarrier();
        sums[lane] = sum;
    }
    return sums[lane];
}

// Candidates of a query that are left; they fill their places without a gap, since every chunk
// but the last is full and leaves `most`.
fn candidates(query: u32) -> u32 {
    var n = (positions[p.first + query] + 1u) / p.ratio;
    for (var round = 0u; round < p.rounds; round++) {
        n = n / p.chunk * p.most + min(n % p.chunk, p.most);
    }
    return n;
}

fn keep(to: u32, source: u32, query: u32) {
    kept_keys[to] = keys[source];
#if blocks
    kept_blocks[p.out_first + to] = blocks[source];
#else
    kept_blocks[p.out_first + to] = source - query * p.in_stride;
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let group = flat_workgroup(id, groups);
    if group >= p.groups { return; }
    let query = group / p.parts;
    let part = group % p.parts;
    let n = candidates(query);
    if part * p.chunk >= n { return; }
    let count = min(n - part * p.chunk, p.chunk);
    let source = query * p.in_stride + part * p.chunk;
    let to = query * p.out_stride + part * p.most;
    if count <= p.most {
        for (var i = lane; i < count; i += WG) { keep(to + i, source + i, query); }
        return;
    }

    // The threshold, from the highest bits on, and how many equal to it are wanted.
    var threshold = 0u;
    var decided = 0u;
    var wanted = p.most;
    for (var digit = 0u; digit < 4u; digit++) {
        let shift = 24u - 8u * digit;
        atomicStore(&bins[lane], 0u);
        workgroupBarrier();
        for (var i = lane; i < count; i += WG) {
            let key = keys[source + i];
            if (key & decided) == threshold { atomicAdd(&bins[(key >> shift) & 255u], 1u); }
        }
        workgroupBarrier();
        let own = atomicLoad(&bins[255u - lane]);
        let from_here = scan(lane, vec2(own, 0u)).x;
        if from_here >= wanted && from_here - own < wanted {
            found = vec2(255u - lane, wanted - (from_here - own));
        }
        workgroupBarrier();
        threshold |= found.x << shift;
        decided |= 255u << shift;
        wanted = found.y;
    }

    let share = (count + WG - 1u) / WG;
    let begin = min(lane * share, count);
    let end = min(begin + share, count);
    var own = vec2(0u);  // above the threshold, equal to it
    for (var i = begin; i < end; i++) {
        let key = keys[source + i];
        own += vec2(u32(key > threshold), u32(key == threshold));
    }
    var before = scan(lane, own) - own;
    for (var i = begin; i < end; i++) {
        let key = keys[source + i];
        let equal = key == threshold && before.y < wanted;
        if key > threshold || equal {
            keep(to + before.x + min(before.y, wanted), source + i, query);
        }
        before += vec2(u32(key > threshold), u32(key == threshold));
    }
}
