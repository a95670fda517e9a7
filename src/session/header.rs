//! What a session file says of itself.

use std::{
    io::{Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Identity, refused};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"ENGSESS\n";
const VERSION: u32 = 1;
/// Magic, version and length.
const FIXED: usize = 16;
/// Most bytes of the JSON: a part takes about forty.
const MOST: u32 = 1 << 20;

/// The header. The parts that it lists follow it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    /// Positions of the checkpoints, ascending.
    pub(crate) checkpoints: Vec<u32>,
    /// Name and bytes of every part.
    pub(crate) parts: Vec<(String, u64)>,
}

impl Header {
    /// Bytes of a file with this header of `length` bytes; none: more than there can be.
    pub(super) fn file_bytes(&self, length: u64) -> Option<u64> {
        let sum = size_of::<u64>() as u64;
        let parts = self
            .parts
            .iter()
            .try_fold(0_u64, |all, (_, bytes)| all.checked_add(*bytes)?.checked_add(sum))?;
        parts.checked_add(length)
    }

    /// Writes it and returns how many bytes it has.
    pub(super) fn write(&self, to: &mut impl Write) -> std::io::Result<u64> {
        let json = serde_json::to_vec(self)?;
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(json);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        to.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Whether the file at `path` begins as a session does.
    pub(super) fn begins(path: &Path) -> bool {
        let mut magic = [0; MAGIC.len()];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == MAGIC
    }

    /// Reads it and how many bytes it has from a file that is called `path`.
    pub(super) fn read(path: &Path, from: &mut impl Read) -> Result<(Self, u64)> {
        let mut bytes = Vec::new();
        from.take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
        if bytes.is_empty() {
            return Err(refused(path, "is empty"));
        }
        // Not to be mistaken for a session that can be replaced.
        if bytes != MAGIC {
            return Err(Error::Usage(format!("{} is not a session file", path.display())));
        }
        bytes.resize(FIXED, 0);
        fill(path, from, &mut bytes[MAGIC.len()..])?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (version, length) = (word(8), word(12));
        if version != VERSION {
            let reason =
                format!("has version {version} of the format, where this program has {VERSION}");
            return Err(refused(path, reason));
        }
        if length > MOST {
            return Err(refused(path, format!("is damaged: its header has {length} bytes")));
        }
        bytes.resize(FIXED + length as usize, 0);
        fill(path, from, &mut bytes[FIXED..])?;
        let mut sum = [0; 8];
        fill(path, from, &mut sum)?;
        if u64::from_le_bytes(sum) != xxh3_64(&bytes) {
            return Err(refused(path, "is damaged: its header does not match its checksum"));
        }
        let header = serde_json::from_slice(&bytes[FIXED..])
            .map_err(|e| refused(path, format!("has a wrong header: {e}")))?;
        Ok((header, (bytes.len() + sum.len()) as u64))
    }
}

/// Fills `bytes` from a file that is called `path`.
pub(super) fn fill(path: &Path, from: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => refused(path, "is cut short"),
        _ => Error::io(path, error),
    })
}
