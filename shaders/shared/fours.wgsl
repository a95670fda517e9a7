// Weights by fours from the table that begins the part: word i holds entry i in bytes.
fn fours(i: vec4<u32>) -> vec4<u32> {
    return vec4(w[i.x], w[i.y], w[i.z], w[i.w]);
}
