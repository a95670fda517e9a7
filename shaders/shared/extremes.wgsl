// For types in blocks of 32 values (kv/block.wgsl): what the blocks' scales follow from. Consecutive
// lanes hold consecutive eights.

var<workgroup> extremes: array<f32, WG>;

// The values of the largest magnitude in both blocks that the lane and its neighbours hold, given
// the lane's own. Every invocation must call: it holds barriers.
fn block_extremes(lane: u32, own: f32) -> vec2<f32> {
    workgroupBarrier();
    extremes[lane] = own;
    workgroupBarrier();
    let first = lane / 8u * 8u;
    var both = vec2(extremes[first], extremes[first + 4u]);
    for (var i = 1u; i < 4u; i++) {
        both.x = larger(both.x, extremes[first + i]);
        both.y = larger(both.y, extremes[first + 4u + i]);
    }
    return both;
}
