// What the first pass of the chunked delta rule leaves for the second: per value head and chunk
// four matrices of C rows (tokens), one column after the other.

const C: u32 = 64u;           // tokens a chunk
const ROWS: u32 = C / 4u;     // quads a column

const U_COLUMN: u32 = 0u;             // d_v columns: T (beta v)
const W_COLUMN: u32 = D;              // d_k columns: T (beta e^G k)
const Q_COLUMN: u32 = 2u * D;         // d_k columns: e^G q / sqrt(d_k)
const P_COLUMN: u32 = 3u * D;         // C columns: (q_i . k_j) D_ij, rows from 4 (j / 4) on
const PART: u32 = (3u * D + C) * ROWS;
const SCALES: u32 = C + 1u;           // e^(G_last - G_j) / |k_j| for each token, then e^G_last
