//! A bounds-checked reader of little-endian fields.

use std::fmt::Display;
use std::path::Path;

use crate::{Error, Result};

/// Longest string: chat templates are some 60 KiB, token strings far less.
const MAX_STRING: u64 = 64 << 20;

/// Reads fields of `file` one after the other; running out of bytes is an error, never a panic.
pub(super) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    /// Bytes from the start of the file.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not read yet.
    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// An error about this file.
    pub(super) fn error(&self, reason: impl Into<String>) -> Error {
        Error::gguf(self.file, reason)
    }

    /// The next `n` bytes; `what` names the field for the error.
    pub(super) fn take(&mut self, n: u64, what: impl Display) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(n).ok().and_then(|n| rest.get(..n)).ok_or_else(|| {
            self.error(format!(
                "ends inside {what}: {n} bytes wanted at offset {}, {} left",
                self.at,
                rest.len()
            ))
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    /// The next u32.
    pub(super) fn u32(&mut self, what: impl Display) -> Result<u32> {
        self.take(4, what).map(|b| b.iter().rev().fold(0, |v, &b| v << 8 | u32::from(b)))
    }

    /// The next u64.
    pub(super) fn u64(&mut self, what: impl Display) -> Result<u64> {
        self.take(8, what).map(|b| b.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)))
    }

    /// The next string, as bytes.
    pub(super) fn string(&mut self, what: impl Display) -> Result<&'a [u8]> {
        let len = self.u64(format_args!("the length of {what}"))?;
        if len > MAX_STRING {
            return Err(self.error(format!(
                "{what} claims to be {len} bytes long, the limit is {MAX_STRING}"
            )));
        }
        self.take(len, what)
    }

    /// The next string of 1 to `max` bytes of UTF-8.
    pub(super) fn name(&mut self, max: usize, what: impl Display) -> Result<&'a str> {
        let bytes = self.string(&what)?;
        if bytes.is_empty() || bytes.len() > max {
            return Err(self.error(format!("{what} is {} bytes long, not 1 to {max}", bytes.len())));
        }
        str::from_utf8(bytes).map_err(|_| {
            self.error(format!("{what}, `{}`, is not UTF-8", String::from_utf8_lossy(bytes)))
        })
    }
}
