// Chunks of the delta rule (spec/architectures.md 1.4.2).

const CHUNK: u32 = 64u;         // C, tokens a chunk
const ROWS: u32 = CHUNK / 4u;   // quads of tokens

struct Params {
    heads: Heads,
    first: u32,     // first token
    n: u32,         // one past the last token
    chunks: u32,
}

fn head_dim() -> u32 {
    return 4u * p.heads.quads;
}
