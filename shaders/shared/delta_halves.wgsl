// What the first pass of the chunked delta rule leaves for the second where cooperative matrices
// multiply: per value head and chunk five matrices in f16, each in blocks of EDGE x EDGE, row by row.
//
//   KEYS     [C][D]  e^G k / |k|
//   QUERIES  [C][D]  e^G q / (|q| sqrt(D))
//   UPDATES  [D][C]  of column j, e^(G_last - G_j) k_j / |k_j|
//   SOLVED   [C][C]  (I + A)^-1 diag(beta); blocks above the diagonal are not written
//   SCORES   [C][C]  P_ij = (q_i . k_j) D_ij; the same
//
// All are at most 1: keys of that length make T = (I + A)^-1 a product of contractions.

#import shared/delta_chunks

const D: u32 = $D;
const PARTS: u32 = 4u;              // subgroups that multiply
const WG: u32 = PARTS * $LANES;

// In quads, of a block's row and of a block.
const ACROSS: u32 = EDGE / 4u;
const BLOCK: u32 = EDGE * ACROSS;
// Blocks of a row of D and of C values; of the rows of C that a subgroup makes.
const WIDE: u32 = D / EDGE;
const NARROW: u32 = CHUNK / EDGE;
const MINE: u32 = NARROW / PARTS;

const KEYS: u32 = 0u;
const QUERIES: u32 = CHUNK * D / 4u;
const UPDATES: u32 = 2u * QUERIES;
const SOLVED: u32 = 3u * QUERIES;
const SCORES: u32 = SOLVED + CHUNK * CHUNK / 4u;
const PART: u32 = SCORES + CHUNK * CHUNK / 4u;

// Quad `quad` of row `row` of a matrix of `blocks` blocks a row.
fn place(row: u32, quad: u32, blocks: u32) -> u32 {
    return (row / EDGE * blocks + quad / ACROSS) * BLOCK + row % EDGE * ACROSS + quad % ACROSS;
}
