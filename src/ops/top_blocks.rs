//! The blocks with the largest scores: an exact choice in rounds, each of which leaves the best
//! of every chunk of candidates (spec/architectures.md 4.5.4).

use super::Tokens;
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    kv::IndexShape,
    shader::Variant,
};

/// The blocks that each query of a step attends to.
#[derive(Clone, Debug)]
pub struct Selection {
    /// u32 `[query][most]`: block numbers, ascending; of the query at position p the first
    /// `min(complete(p), most)` count (see [`IndexShape`]), the rest is unspecified.
    pub blocks: Buf,
    /// Queries there is room for.
    pub rows: u32,
    /// Blocks a query.
    pub most: u32,
}

impl Selection {
    /// Room for steps of up to `rows` tokens.
    ///
    /// # Errors
    /// [`Error::Device`] when it exceeds a binding or memory is short.
    pub fn new(gpu: &dyn Memory, shape: IndexShape, rows: u32) -> Result<Self> {
        let most = shape.most();
        let bytes = u64::from(rows) * u64::from(most) * 4;
        let blocks = gpu.alloc("selected blocks", bytes, MemoryKind::Scratch)?;
        Ok(Self { blocks, rows, most })
    }
}

/// What a round leaves: u32 keys and block numbers.
#[derive(Clone, Debug)]
struct Candidates {
    keys: Buf,
    blocks: Buf,
}

/// Candidates between rounds.
#[derive(Clone, Debug)]
pub struct TopScratch {
    /// Used in turn.
    rounds: [Candidates; 2],
    /// Entries of each.
    entries: u64,
}

impl TopScratch {
    /// For up to `n` queries with up to `scores` scores in all.
    ///
    /// # Errors
    /// [`Error::Device`] when it exceeds a binding or memory is short.
    pub fn new(gpu: &dyn Memory, shape: IndexShape, n: u32, scores: u64) -> Result<Self> {
        let most = shape.most();
        // Every query leaves `most` of each whole chunk and of one that is not whole.
        let chunks = scores / u64::from(chunk(most)) + u64::from(n);
        let entries = chunks * u64::from(most);
        let alloc = |label| gpu.alloc(label, entries * 4, MemoryKind::Scratch);
        let candidates = || {
            Ok(Candidates { keys: alloc("candidate scores")?, blocks: alloc("candidate blocks")? })
        };
        Ok(Self { rounds: [candidates()?, candidates()?], entries })
    }
}

/// Candidates a workgroup takes: enough that a round leaves few of them.
fn chunk(most: u32) -> u32 {
    (16 * most).max(4096)
}

/// Candidates of a query that a round leaves of `blocks`.
fn kept(most: u32, blocks: u32) -> u32 {
    blocks.div_ceil(chunk(most)).max(1) * most
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    groups: u32,
    parts: u32,
    chunk: u32,
    most: u32,
    ratio: u32,
    first: u32,
    rounds: u32,
    in_stride: u32,
    out_stride: u32,
    out_first: u32,
}

/// Writes to `selection` the blocks of the largest scores, ties to the lower block, of the
/// queries of `tokens`, all complete blocks where there are no more than wanted. `scores` are
/// u32 `[n][stride]` in unsigned order. The dispatches depend on `stride` alone.
///
/// # Errors
/// Shapes that do not fit.
pub fn record(
    rec: &mut Recorder,
    (scores, stride): (&Buf, u32),
    positions: &Buf,
    shape: IndexShape,
    tokens: Tokens,
    scratch: &TopScratch,
    selection: &Selection,
) -> Result<()> {
    let (most, Tokens { first, n }) = (shape.most(), tokens);
    let all = u64::from(tokens.end());
    if n == 0 || positions.size() < all * 4 || u64::from(selection.rows) < all {
        return Err(Error::Shader(format!("top_blocks: no room for {tokens:?}")));
    }
    let entries = u64::from(n) * u64::from(kept(most, stride));
    let room = scores.size() / 4 >= u64::from(n) * u64::from(stride);
    if selection.most != most || scratch.entries < entries || !room {
        return Err(Error::Shader(format!(
            "top_blocks: scores, scratch or selection are not for {most} of {stride} blocks"
        )));
    }
    let mut input = (scores, None);
    let mut in_stride = stride;
    for round in 0.. {
        let parts = in_stride.div_ceil(chunk(most)).max(1);
        let out = &scratch.rounds[round as usize % 2];
        let last = parts == 1;
        let params = Params {
            groups: parts * n,
            parts,
            chunk: chunk(most),
            most,
            ratio: shape.ratio,
            first,
            rounds: round,
            in_stride,
            out_stride: parts * most,
            out_first: if last { first * most } else { 0 },
        };
        let kept = if last { &selection.blocks } else { &out.blocks };
        let mut bindings = vec![positions.into(), input.0.into(), (&out.keys).into(), kept.into()];
        if let Some(blocks) = input.1 {
            bindings.push(Into::into(blocks));
        }
        let variant = Variant::new("top_blocks").flag("blocks", input.1.is_some());
        let grid = Grid::Flat(u64::from(parts * n));
        rec.dispatch("top_blocks", &variant, &bindings, &params, grid)?;
        if last {
            break;
        }
        input = (&out.keys, Some(&out.blocks));
        in_stride = parts * most;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference::indexer::largest,
        testing::{TestDevice, each_device, random},
    };

    /// What relu leaves: a part of the scores is 0, and `distinct` values are all there are.
    fn scores(seed: u64, n: usize, distinct: f32) -> Vec<u32> {
        let value = |x: f32| ((x + 0.4).max(0.0) * distinct).floor() / distinct;
        random(seed, n).into_iter().map(|x| value(x).to_bits()).collect()
    }

    /// Compares the choice of queries at `positions`, whose rows of scores are `rows`.
    fn check(t: &TestDevice, shape: IndexShape, positions: &[u32], rows: &[Vec<u32>]) {
        let n = positions.len() as u32;
        let stride = rows.iter().map(Vec::len).max().unwrap() + 1;
        // Past the complete blocks there is what beats every score.
        let padded: Vec<u32> = (rows.iter())
            .flat_map(|row| row.iter().copied().chain(vec![u32::MAX; stride - row.len()]))
            .collect();
        let (scores, positions) = (t.upload_words(&padded), t.upload_words(positions));
        let scratch = TopScratch::new(&t.gpu, shape, n, padded.len() as u64).unwrap();
        let selection = Selection::new(&t.gpu, shape, n).unwrap();
        t.run(|rec| {
            let scores = (&scores, stride as u32);
            record(rec, scores, &positions, shape, n.into(), &scratch, &selection)
        });
        let most = shape.most() as usize;
        let got = t.read_words(&selection.blocks, n as usize * most);
        for (row, got) in rows.iter().zip(got.chunks(most)) {
            assert!(got[..row.len().min(most)] == largest(row, most), "{} blocks", row.len());
        }
    }

    #[test]
    fn every_length_around_the_budget() {
        each_device(|t| {
            for (ratio, budget) in [(4, 32), (1, 5), (8, 8)] {
                let shape = IndexShape { heads: 1, head_dim: 8, ratio, budget };
                let positions: Vec<u32> = (0..4 * budget + 8).collect();
                for distinct in [1e9, 3.0, 0.5] {
                    let rows = positions
                        .iter()
                        .map(|p| scores(u64::from(*p), shape.complete(*p) as usize, distinct));
                    check(t, shape, &positions, &rows.collect::<Vec<_>>());
                }
            }
        });
    }

    #[test]
    fn a_hundred_thousand_and_a_million_blocks() {
        each_device(|t| {
            let shape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 2048 };
            for n in [100_000_u32, 1_000_000] {
                let position = 4 * n + 2;
                for distinct in [1e9, 17.0] {
                    check(t, shape, &[position], &[scores(1, n as usize, distinct)]);
                }
                check(t, shape, &[position], &[vec![0; n as usize]]);
                // Equal ones on both sides of chunk borders, and few larger ones at the end.
                let mut rows = vec![1.0_f32.to_bits(); n as usize];
                rows[n as usize - 100..].fill(2.0_f32.to_bits());
                check(t, shape, &[position], &[rows]);
            }
        });
    }

    #[test]
    fn several_queries_of_several_chunks() {
        each_device(|t| {
            let shape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 32 };
            let border = chunk(shape.most());
            // Chunks that are full, and a last one of less and of just as much as is wanted.
            let blocks = [3, border - 1, border, border + 1, border + 8, 3 * border + 9];
            let positions = blocks.map(|b| 4 * b + 1);
            let rows = blocks.map(|b| scores(u64::from(b), b as usize, 100.0));
            check(t, shape, &positions, &rows);
        });
    }

    #[test]
    fn scratch_for_other_shapes_is_refused() {
        each_device(|t| {
            let shape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 32 };
            let words = t.upload_words(&[0; 64]);
            let scratch = TopScratch::new(&t.gpu, shape, 2, 8).unwrap();
            let selection = Selection::new(&t.gpu, shape, 2).unwrap();
            let mut rec = Recorder::new(&t.gpu);
            let mut refused = |shape, stride, queries| {
                let scores = (&words, stride);
                record(&mut rec, scores, &words, shape, queries, &scratch, &selection).is_err()
            };
            assert!(!refused(shape, 8, 2.into()));
            assert!(refused(shape, 8, 3.into()));
            assert!(refused(shape, 8, Tokens { first: 1, n: 2 }));
            assert!(refused(shape, 40, 2.into()));
            assert!(refused(IndexShape { budget: 64, ..shape }, 8, 2.into()));
        });
    }
}
