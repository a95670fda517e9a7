//! Threads that read rows, kept for the life of a table: a cold row is one wait for the disk, and
//! disks answer many at a time.

use super::table::Rows;
use crate::{Error, Result};
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

/// They sleep in the disk's queue, so cores do not limit them; a cold prefill chunk is read twice
/// as fast by 64 as by 16.
const THREADS: usize = 64;
/// Bytes of their stacks: rows are on the heap.
const STACK: usize = 128 << 10;
/// Pieces of a long request for each thread, which evens out slow reads.
const PIECES: usize = 4;

/// The threads of one table. They end when this is dropped and their pieces are read.
#[derive(Debug)]
pub(super) struct Readers {
    pieces: Sender<Piece>,
}

/// Rows to be read by one thread.
#[derive(Debug)]
struct Piece {
    /// Place of the first among the request's rows.
    first: usize,
    rows: Vec<u64>,
    done: Sender<Result<(usize, Vec<f32>)>>,
}

impl Readers {
    pub(super) fn start(rows: &Arc<Rows>) -> io::Result<Self> {
        let (pieces, queue) = mpsc::channel::<Piece>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let (queue, rows) = (queue.clone(), rows.clone());
            let thread = thread::Builder::new().name("ngram reader".into()).stack_size(STACK);
            thread.spawn(move || {
                while let Some(Piece { first, rows: wanted, done }) = next(&queue) {
                    // Fails when nobody waits for the rows any more.
                    let _ = done.send(rows.read(&wanted).map(|values| (first, values)));
                }
            })?;
        }
        Ok(Self { pieces })
    }

    /// Starts reading `wanted`, each row once and in the order of the file.
    pub(super) fn request(&self, wanted: &[u64], width: usize) -> Pending {
        let mut unique = wanted.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let length = unique.len().div_ceil(THREADS * PIECES).max(1);
        let (done, pieces) = mpsc::channel();
        for (i, rows) in unique.chunks(length).enumerate() {
            let piece = Piece { first: i * length, rows: rows.to_vec(), done: done.clone() };
            // Fails when no thread is left; then the wait finds too few pieces.
            let _ = self.pieces.send(piece);
        }
        Pending { wanted: wanted.to_vec(), unique, width, pieces }
    }
}

fn next(queue: &Mutex<Receiver<Piece>>) -> Option<Piece> {
    // The lock is free again when this returns: pieces are read side by side.
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Rows being read. Dropping it is allowed: the rows are then read for nothing.
#[derive(Debug)]
pub struct Pending {
    wanted: Vec<u64>,
    unique: Vec<u64>,
    width: usize,
    pieces: Receiver<Result<(usize, Vec<f32>)>>,
}

impl Pending {
    /// The values of the rows, `[rows][width]` in the order asked for, once all are read.
    ///
    /// # Errors
    /// A row that cannot be read, such as one of a file that was cut short meanwhile.
    pub fn wait(self) -> Result<Vec<f32>> {
        let width = self.width;
        let mut read = vec![0.0; self.unique.len() * width];
        let mut missing = self.unique.len();
        for piece in self.pieces {
            let (first, values) = piece?;
            read[first * width..][..values.len()].copy_from_slice(&values);
            missing -= values.len() / width;
        }
        if missing > 0 {
            return Err(Error::Model(format!("{missing} rows of the n-gram table were not read")));
        }
        let mut values = Vec::with_capacity(self.wanted.len() * width);
        for row in &self.wanted {
            let at = self.unique.partition_point(|r| r < row);
            values.extend_from_slice(&read[at * width..][..width]);
        }
        Ok(values)
    }
}
