// What the first pass of the chunked delta rule leaves for the second: per value head and chunk
// four matrices of C rows (tokens), one column after the other. d = d_k = d_v, in `heads.quads`.
//
//   columns 0 .. d      U = T (beta v)
//   columns d .. 2d     W = T (beta e^G k)
//   columns 2d .. 3d    e^G q / sqrt(d)
//   columns 3d .. 3d+C  P_ij = (q_i . k_j) D_ij, in column j only rows from 4 (j / 4) on

#import shared/delta_chunks

const SCALES: u32 = CHUNK + 1u;     // e^(G_last - G_j) / |k_j| of each token, then e^G_last

// Quads of all columns.
fn part_size() -> u32 {
    return (3u * head_dim() + CHUNK) * ROWS;
}
