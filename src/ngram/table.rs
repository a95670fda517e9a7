//! The n-gram table: rows of a tensor of 29 to 102 GB, read where they lie.

use super::{
    read_at::read_exact_at,
    readers::{Pending, Readers},
};
use crate::{
    Error, Gguf, Result,
    gguf::Origin,
    quant::{BlockType, dequantise},
};
use std::{
    borrow::Cow,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The tensor that is the table.
pub const TABLE: &str = "per_layer_token_embd.weight";

/// Where the table is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// The file, row by row; the system keeps what it has memory for.
    #[default]
    Disk,
    /// Memory, filled once at the start.
    Ram,
}

/// The n-gram table of a model, `[rows][width]`.
#[derive(Debug)]
pub struct NgramTable {
    rows: Arc<Rows>,
    readers: Readers,
}

/// What the threads that read have of the table.
#[derive(Debug)]
pub(super) struct Rows {
    source: Source,
    /// The file, for errors.
    path: PathBuf,
    ty: BlockType,
    count: u64,
    width: usize,
    row_bytes: usize,
}

#[derive(Debug)]
enum Source {
    /// The table begins at a byte of the file.
    File(File, u64),
    Memory(Cow<'static, [u8]>),
}

impl NgramTable {
    /// The table of an opened model, in whichever part it lies. With [`Storage::Ram`] all of it is
    /// read now. A table that is part of the program is used where it is.
    ///
    /// # Errors
    /// [`Error::Model`] when there is no table or its type is not supported; a file that cannot be
    /// read; memory or threads that the system does not have.
    pub fn open(gguf: &Gguf, storage: Storage) -> Result<Self> {
        let wrong = |reason: String| Error::Model(format!("tensor `{TABLE}` {reason}"));
        let tensor = gguf.tensor(TABLE).ok_or_else(|| wrong("is missing".into()))?;
        let [width, count] = *tensor.shape() else {
            return Err(wrong(format!("has {} dimensions, not 2", tensor.n_dims)));
        };
        let bytes = tensor.ty.row_bytes(width).and_then(|n| usize::try_from(n).ok());
        let (Ok(width), Some(row_bytes)) = (usize::try_from(width), bytes) else {
            return Err(wrong(format!("has rows of {width} values, too long for this system")));
        };
        let (path, origin) = gguf.origin(tensor)?;
        let source = match (origin, storage) {
            (Origin::Static(bytes), _) => Source::Memory(bytes.into()),
            (Origin::File(file), Storage::Disk) => Source::File(file, tensor.offset),
            (Origin::File(file), Storage::Ram) => {
                Source::Memory(load(file, path, tensor.offset, tensor.size)?.into())
            }
        };
        let path = path.to_owned();
        let rows = Arc::new(Rows { source, path, ty: tensor.ty, count, width, row_bytes });
        // Finds a type that is not supported before any token needs a row.
        rows.read(&[0])?;
        let readers = Readers::start(&rows).map_err(|e| Error::io(&rows.path, e))?;
        Ok(Self { rows, readers })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows.count
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.rows.width
    }

    /// Bytes of memory taken for the table.
    pub fn resident_bytes(&self) -> u64 {
        match &self.rows.source {
            Source::File(..) | Source::Memory(Cow::Borrowed(_)) => 0,
            Source::Memory(Cow::Owned(bytes)) => bytes.len() as u64,
        }
    }

    /// Starts reading `rows`, in any order and with repetitions, and returns at once.
    ///
    /// # Errors
    /// [`Error::Model`] naming a row that the table does not have.
    pub fn request(&self, rows: &[u64]) -> Result<Pending> {
        let count = self.rows.count;
        match rows.iter().find(|row| **row >= count) {
            Some(row) => {
                Err(Error::Model(format!("tensor `{TABLE}` of {count} rows has no row {row}")))
            }
            None => Ok(self.readers.request(rows, self.rows.width)),
        }
    }
}

impl Rows {
    /// The values of `rows`, all of which exist, one after the other.
    pub(super) fn read(&self, rows: &[u64]) -> Result<Vec<f32>> {
        let mut values = vec![0.0; rows.len() * self.width];
        let mut buffer = vec![0; self.row_bytes];
        for (row, out) in rows.iter().zip(values.chunks_exact_mut(self.width)) {
            let at = row * self.row_bytes as u64;
            let bytes = match &self.source {
                Source::File(file, start) => {
                    read_exact_at(file, &mut buffer, start + at).map_err(|e| {
                        Error::gguf(
                            &self.path,
                            format!("row {row} of `{TABLE}` cannot be read: {e}"),
                        )
                    })?;
                    &buffer
                }
                Source::Memory(table) => &table[at as usize..][..self.row_bytes],
            };
            dequantise(self.ty, bytes, out)?;
        }
        Ok(values)
    }
}

/// `size` bytes of `file` from `offset`.
fn load(mut file: File, path: &Path, offset: u64, size: u64) -> Result<Vec<u8>> {
    let too_large = || Error::Model(format!("tensor `{TABLE}` of {size} bytes exceeds the memory"));
    let mut bytes = Vec::new();
    let length = usize::try_from(size).map_err(|_| too_large())?;
    bytes.try_reserve_exact(length).map_err(|_| too_large())?;
    file.seek(SeekFrom::Start(offset)).map_err(|e| Error::io(path, e))?;
    file.take(size).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() == length {
        return Ok(bytes);
    }
    Err(Error::gguf(path, format!("ends {} bytes before `{TABLE}` does", length - bytes.len())))
}
