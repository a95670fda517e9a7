//! Session files: all that a sequence remembers, on the disk.
//!
//! ```text
//! 8 bytes   "ENGSESS\n"
//! u32       version of the format
//! u32       bytes of the header
//! header    JSON: what it was saved with, positions of checkpoints, names and bytes of parts
//! u64       XXH3 of all so far
//! part      bytes, then u64: their XXH3; for every part, in the header's order
//! ```
//!
//! Numbers are little-endian. The first two parts are the tokens (u32) and the conversation as the
//! front end has it (JSON). What follows is the state, layer by layer: keys and
//! values by position, whatever segments they lay in, so that a file can be read with another
//! context, placement or device. Parts are written and read piece by piece.
//!
//! A file takes the place of an older one when it is whole, so that there is the one or the other
//! at every moment. One that does not fit, or is damaged, is refused with what differs.

mod header;
mod identity;
mod part;
mod read;
mod write;

pub use identity::Identity;
pub use read::Saved;

pub(crate) use header::Header;
pub(crate) use part::{Extent, Part, Tiles};
pub(crate) use write::Writer;

use std::path::Path;

use crate::Error;

/// Most bytes that are in memory at once on their way to a file or back.
pub(crate) const PIECE: usize = 8 << 20;

/// `reason`, of a session file.
fn refused(file: &Path, reason: impl Into<String>) -> Error {
    Error::Session { file: file.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests;
