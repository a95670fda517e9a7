//! Parts of the state as a session file has them, and their way to and from the device.

use super::PIECE;
use crate::{
    Result,
    gpu::{Buf, Gpu, Readback},
};

/// A named part: ranges of buffers, one after the other.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) extents: Vec<Extent>,
}

/// The beginning of a buffer.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) buf: Buf,
    /// Bytes in the file.
    pub(crate) bytes: u64,
    /// How rows lie in the buffer, if not one after the other as in the file.
    pub(crate) tiles: Option<Tiles>,
}

/// Rows in tiles, `[row / rows][chunk][row % rows]`; segments need not hold whole ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Chunks of a row.
    pub(crate) chunks: usize,
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
}

impl Part {
    /// Bytes in the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }

    /// Gives the part's bytes to `sink`, piece by piece, once all that was submitted is done.
    pub(crate) fn save(
        &self,
        gpu: &Gpu,
        readback: &Readback,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for Extent { buf, bytes, tiles } in &self.extents {
            let Some(tiles) = tiles else {
                readback.stream(gpu, buf, *bytes, PIECE as u64, sink)?;
                continue;
            };
            let (mut left, tile) = (*bytes as usize, tiles.bytes());
            let padded = left.next_multiple_of(tile) as u64;
            readback.stream(gpu, buf, padded, (PIECE / tile * tile) as u64, &mut |piece| {
                let mut rows = vec![0; piece.len()];
                tiles.permute(piece.len(), |in_file, in_buffer| {
                    rows[in_file].copy_from_slice(&piece[in_buffer]);
                });
                let wanted = left.min(rows.len());
                left -= wanted;
                sink(&rows[..wanted])
            })?;
        }
        Ok(())
    }

    /// Has `fill` provide the part's bytes, piece by piece, and puts them on the device.
    pub(crate) fn load(
        &self,
        gpu: &Gpu,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        for Extent { buf, bytes, tiles } in &self.extents {
            let tile = tiles.map_or(1, |tiles| tiles.bytes());
            let most = PIECE / tile * tile;
            let mut done = 0;
            while done < *bytes {
                let n = most.min((*bytes - done) as usize);
                // Rows of a tile that are not in the file are written before they are read.
                let mut piece = vec![0; n.next_multiple_of(tile)];
                fill(&mut piece[..n])?;
                if let Some(tiles) = tiles {
                    let mut tiled = vec![0; piece.len()];
                    tiles.permute(piece.len(), |in_file, in_buffer| {
                        tiled[in_buffer].copy_from_slice(&piece[in_file]);
                    });
                    piece = tiled;
                }
                gpu.upload(buf, done, &piece)?;
                done += n as u64;
            }
        }
        Ok(())
    }
}

impl Tiles {
    fn bytes(&self) -> usize {
        self.rows * self.chunks * self.chunk
    }

    /// Tells where every chunk of whole tiles of `bytes` lies in the file and in the buffer.
    fn permute(
        &self,
        bytes: usize,
        mut tell: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let Self { rows, chunks, chunk } = *self;
        let range = |number: usize| number * chunk..(number + 1) * chunk;
        for tile in 0..bytes / self.bytes() {
            for (row, column) in (0..rows).flat_map(|row| (0..chunks).map(move |c| (row, c))) {
                let first = tile * rows * chunks;
                tell(range(first + row * chunks + column), range(first + column * rows + row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gpu::MemoryKind, ops::testing::each_device};

    /// Saves `part`, spoils its buffers, loads it, and saves it again.
    fn there_and_back(gpu: &Gpu, part: &Part) -> [Vec<u8>; 2] {
        let readback = gpu.readback(PIECE as u64).unwrap();
        let save = || {
            let mut saved = Vec::new();
            part.save(gpu, &readback, &mut |piece| {
                saved.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            saved
        };
        let before = save();
        part.extents.iter().for_each(|extent| gpu.zero(&extent.buf));
        let mut rest = before.as_slice();
        part.load(gpu, &mut |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
        .unwrap();
        assert!(rest.is_empty());
        [before, save()]
    }

    fn filled(gpu: &Gpu, bytes: usize) -> (Buf, Vec<u8>) {
        let buf = gpu.alloc("part", bytes as u64, MemoryKind::Kv).unwrap();
        let values: Vec<u8> =
            (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        gpu.upload(&buf, 0, &values).unwrap();
        (buf, values)
    }

    #[test]
    fn parts_of_more_than_a_piece_come_back() {
        each_device(|t| {
            let (long, values) = filled(&t.gpu, PIECE + 1024);
            let (short, others) = filled(&t.gpu, 64);
            let extents = vec![
                Extent { buf: long, bytes: PIECE as u64 + 516, tiles: None },
                Extent { buf: short, bytes: 64, tiles: None },
            ];
            let [before, after] = there_and_back(&t.gpu, &Part { name: "x".into(), extents });
            assert!(before == [&values[..PIECE + 516], &others].concat());
            assert!(after == before);
        });
    }

    #[test]
    fn tiles_are_rows_in_the_file() {
        each_device(|t| {
            let tiles = Tiles { rows: 32, chunks: 3, chunk: 16 };
            let (buf, values) = filled(&t.gpu, 2 * 32 * 48);
            // A tile and five rows.
            let part = |rows: u64| Part {
                name: "x".into(),
                extents: vec![Extent { buf: buf.clone(), bytes: rows * 48, tiles: Some(tiles) }],
            };
            let [before, after] = there_and_back(&t.gpu, &part(37));
            assert_eq!(before.len(), 37 * 48);
            assert!(after == before);
            for row in 0..37 {
                for chunk in 0..3 {
                    let at = ((row / 32 * 3 + chunk) * 32 + row % 32) * 16;
                    let of = row * 48 + chunk * 16;
                    assert!(before[of..of + 16] == values[at..at + 16], "{row}, {chunk}");
                }
            }
        });
    }
}
