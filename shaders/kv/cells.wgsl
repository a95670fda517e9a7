// Types whose eights are whole cells of 16 bytes: two, or the same one twice.
struct Packed { a: vec4<u32>, b: vec4<u32> }
