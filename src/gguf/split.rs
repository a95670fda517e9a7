//! Models in several files (spec/gguf.md 1.1).

use std::path::{Path, PathBuf};

use super::header::Header;
use super::metadata::Metadata;
use super::{Part, open_part};
use crate::{Error, Result};

/// The metadata keys of a set: this part's number from 0, the number of parts, tensors in all.
pub(super) const NUMBER_KEY: &str = "split.no";
pub(super) const COUNT_KEY: &str = "split.count";
pub(super) const TENSORS_KEY: &str = "split.tensors.count";

/// What one part says of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// This part, from 0.
    number: u32,
    /// Parts in the set, 2 or more.
    count: u32,
    /// Tensors in all parts.
    tensors: u64,
}

impl Split {
    /// What the metadata of `path` say; `None` for a single file.
    pub(super) fn of(path: &Path, metadata: &Metadata) -> Result<Option<Self>> {
        // Merged files keep the key, with 0.
        let count = metadata.optional::<u32>(COUNT_KEY)?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        let number = metadata.require(NUMBER_KEY)?;
        if number >= count || count > u16::MAX.into() {
            return Err(Error::gguf(
                path,
                format!("says that it is part {number} (from 0) of {count}"),
            ));
        }
        Ok(Some(Self { number, count, tensors: metadata.require(TENSORS_KEY)? }))
    }

    /// Opens all parts, in order. `given` is the part that says `self`.
    pub(super) fn open_set(self, given: Part, header: Header) -> Result<Vec<(Part, Header)>> {
        let path = given.path.clone();
        let mut given = Some((given, header));
        let mut set = Vec::new();
        for number in 0..self.count {
            let part = match given.take_if(|_| number == self.number) {
                Some(part) => part,
                None => open_part(&self.sibling(&path, number)?)?,
            };
            self.check(number, &part.0.path, &part.1.metadata)?;
            set.push(part);
        }
        Ok(set)
    }

    /// Checks the number of tensors of all parts together.
    pub(super) fn check_total(self, path: &Path, found: usize) -> Result<()> {
        if found as u64 == self.tensors {
            return Ok(());
        }
        let reason = format!("says `{TENSORS_KEY}` is {}, the parts hold {found}", self.tensors);
        Err(Error::gguf(path, reason))
    }

    /// The path of part `number` (from 0), by the name of this one. Only the file name changes,
    /// so no part can be looked for in another directory.
    fn sibling(self, path: &Path, number: u32) -> Result<PathBuf> {
        let suffix = suffix(self.number, self.count);
        let prefix =
            path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(&*suffix));
        let prefix = prefix.ok_or_else(|| {
            Error::gguf(
                path,
                format!(
                    "is part {} of {} by its metadata, but its name does not end in `{suffix}`",
                    self.number + 1,
                    self.count
                ),
            )
        })?;
        Ok(path.with_file_name(format!("{prefix}{}", self::suffix(number, self.count))))
    }

    /// Checks that the file found at the place of part `number` is that part of this set.
    fn check(self, number: u32, path: &Path, metadata: &Metadata) -> Result<()> {
        let expected = Self { number, ..self };
        match Self::of(path, metadata)? {
            Some(found) if found == expected => Ok(()),
            Some(found) => {
                Err(Error::gguf(path, format!("is {found}, but {expected} was expected here")))
            }
            None => Err(Error::gguf(
                path,
                format!("is a single file, but {expected} was expected here"),
            )),
        }
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, count, tensors } = self;
        write!(f, "part {} of {count} of a model of {tensors} tensors", number + 1)
    }
}

/// How the name of part `number` (from 0) ends.
pub(super) fn suffix(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}
