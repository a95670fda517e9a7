// What every cache type (kv/TYPE.wgsl) gives. Rows, one a token, are read and written in eights, 8
// consecutive values; `eights` is a row's number of them.
//   Cell_TYPE, Stored_TYPE       element of the buffer where it is read, where it is written
//   places_TYPE(row, eights, i)  the cells that eight i of a row lies in: x and y; z: where in y
//   join_TYPE(x, y, z)           the eight as stored, from what is in those cells
//   unpack_TYPE(packed)          its values
//   pack_TYPE(values)            the two cells' content (types in blocks: kv/block.wgsl)
//   UNIT_TYPE                    power of two that makes all values fit f16, of types that have one
struct Eight { lo: vec4<f32>, hi: vec4<f32> }

// Within the range of f16, past which conversion is not defined; NaN stays NaN.
fn within_f16(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4(0x7fffffffu)) > vec4(0x7f800000u);
    return select(clamp(x, vec4(-65504.0), vec4(65504.0)), x, nan);
}
