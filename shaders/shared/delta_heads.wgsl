// Where the heads of a token lie in u, the values of q, k and v after the convolution:
// [n][K d | K d | V d] in quads. All heads have the same width, `heads.quads`.

struct Heads {
    key: u32,      // K
    value: u32,    // V, a multiple of K
    share: u32,    // neighbouring value heads with the same key head
    quads: u32,    // quads a head
}

fn token_quads() -> u32 {
    return (2u * p.heads.key + p.heads.value) * p.heads.quads;
}

fn key_head(head: u32) -> u32 {
    return head / p.heads.share % p.heads.key;
}

fn q_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + key_head(head) * p.heads.quads;
}

fn k_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + (p.heads.key + key_head(head)) * p.heads.quads;
}

fn v_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + (2u * p.heads.key + head) * p.heads.quads;
}
