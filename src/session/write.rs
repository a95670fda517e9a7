//! Writing a session file.

use std::{
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3Default;

use super::header::Header;
use crate::{Error, Result, replace::Replacement};

/// A session file that is being written.
pub(crate) struct Writer {
    target: PathBuf,
    replacement: Replacement,
    bytes: u64,
}

impl Writer {
    /// Begins a file that will be at `target`, where there is nothing or another session.
    pub(crate) fn begin(target: &Path, header: &Header) -> Result<Self> {
        let is_other = target.metadata().is_ok_and(|there| there.len() > 0);
        if is_other && !Header::begins(target) {
            return Err(Error::Usage(format!("{} is not a session file", target.display())));
        }
        let replacement = Replacement::private(target)?;
        let length = header.write(&mut replacement.file());
        let length = length.map_err(|e| Error::io(target, e))?;
        let bytes = header.file_bytes(length).unwrap_or(length);
        Ok(Self { target: target.into(), replacement, bytes })
    }

    /// Writes the next part, of which `save` gives the sink the bytes.
    pub(crate) fn part(
        &mut self,
        save: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let mut hash = Xxh3Default::new();
        let mut out = BufWriter::new(self.replacement.file());
        let mut sink = |piece: &[u8]| {
            hash.update(piece);
            out.write_all(piece).map_err(|e| Error::io(&self.target, e))
        };
        save(&mut sink)?;
        let sum = hash.digest().to_le_bytes();
        out.write_all(&sum).and_then(|()| out.flush()).map_err(|e| Error::io(&self.target, e))
    }

    /// Has the file take its place; returns its bytes.
    pub(crate) fn finish(self) -> Result<u64> {
        self.replacement.finish()?;
        Ok(self.bytes)
    }
}
