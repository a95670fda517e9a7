// Where eight values `i` of the pooled key of a block are, counted in eights: those of 32 blocks lie
// side by side (`kv::PooledKeys`).
fn pooled_eight(block: u32, i: u32) -> u32 {
    return (block / 32u * EIGHTS + i) * 32u + block % 32u;
}
