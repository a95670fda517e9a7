// What every cache type (kv/TYPE.wgsl) gives, in eights: 8 consecutive values of a row. An eight
// lives in at most two vec4<u32> of the segment:
//   words_TYPE(i)        where eight i of the segment is (both places equal: one vec4 holds it)
//   unpack_TYPE(w)       its values, from the content of the two places
//   pack_TYPE(e)         that content, from its values
struct Eight { lo: vec4<f32>, hi: vec4<f32> }
struct Packed { a: vec4<u32>, b: vec4<u32> }
