// Where the heads of a token lie in u (values of q, k and v after the convolution, in quads).
// Uses `p.key_heads` and `p.value_heads` of the kernel's parameters.

const D: u32 = $D;            // d_k = d_v
const QUADS: u32 = D / 4u;    // quads a head

fn key_head(head: u32) -> u32 {
#if map=tiled
    return head % p.key_heads;
#else
    return head / (p.value_heads / p.key_heads);
#endif
}

fn token_quads() -> u32 {
    return (2u * p.key_heads + p.value_heads) * QUADS;
}

fn q_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + key_head(head) * QUADS;
}

fn k_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + (p.key_heads + key_head(head)) * QUADS;
}

fn v_start(token: u32, head: u32) -> u32 {
    return token * token_quads() + (2u * p.key_heads + head) * QUADS;
}
