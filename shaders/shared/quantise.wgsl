// Activations as whole numbers of 16 bits, for products with bytes (`mat_vec.wgsl` with `whole`). 32
// of them are 5 vec4: 2 of signed bytes `high`, 2 of signed bytes `low`, then the unit, and the sums
// of the first and of the last 16 values. A value is unit * (254 * high + low), the largest magnitude
// 254 * 127 units. An infinity or a NaN makes the unit NaN; what is below 2^-100 counts as 0.

var<workgroup> magnitudes: array<u32, WG>;
var<workgroup> sums_of_four: array<i32, WG>;

// Writes v, the values from 4 i on of `whole`, if `live`. Every invocation must call, eight in a row
// for the same 32 values: it holds barriers.
fn quantise(local: u32, i: u32, v: vec4<f32>, live: bool) {
    // Bits order as magnitudes do, infinities and NaN come last.
    let bits = bitcast<vec4<u32>>(v) & vec4(0x7fffffffu);
    workgroupBarrier();
    magnitudes[local] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    var most = 0u;
    for (var k = 0u; k < 8u; k++) { most = max(most, magnitudes[(local & ~7u) + k]); }
    let finite = most < 0x7f800000u;
    let largest = bitcast<f32>(most);
    let usable = finite && largest > 7.9e-31;
    let scaled = select(vec4<f32>(), v * (127.0 / largest), usable);
    let high = round(scaled);
    let low = round(254.0 * (scaled - high));
    let q = pack4xI8(vec4<i32>(high));
    let r = pack4xI8(vec4<i32>(low));
    sums_of_four[local] = 254 * dot4I8Packed(q, 0x01010101u) + dot4I8Packed(r, 0x01010101u);
    workgroupBarrier();
    if !live { return; }
    let block = 20u * (i >> 3u);
    whole[block + (i & 7u)] = q;
    whole[block + 8u + (i & 7u)] = r;
    if (i & 3u) == 0u {
        let unit = select(0.0, largest / (127.0 * 254.0), usable);
        let unit_bits = select(0x7fc00000u, bitcast<u32>(unit), finite);
        var sum = 0;
        for (var k = 0u; k < 4u; k++) { sum += sums_of_four[local + k]; }
        whole[block + 17u + ((i >> 2u) & 1u)] = bitcast<u32>(bitcast<f32>(unit_bits) * f32(sum));
        if (i & 4u) == 0u { whole[block + 16u] = unit_bits; }
    }
}
