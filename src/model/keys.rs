//! Reading the metadata keys of one architecture.

use super::arch::Arch;
use crate::gguf::{FromValue, Metadata, OneOrMany};
use crate::{Error, Result};

/// The keys that begin with the architecture's name, which is left out here.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) arch: Arch,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, arch: Arch) -> Self {
        Self { metadata, arch }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.arch.name())
    }

    pub(super) fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.optional(&self.full(key))
    }

    pub(super) fn require<T: FromValue<'a>>(&self, key: &str) -> Result<T> {
        self.metadata.require(&self.full(key))
    }

    /// An error about the value of `key`; `fault` continues the sentence.
    pub(super) fn error(&self, key: &str, fault: &str) -> Error {
        self.metadata.error(&self.full(key), fault)
    }

    /// The error for a key that this model cannot do without.
    pub(super) fn missing(&self, key: &str) -> Error {
        self.error(key, "is missing")
    }

    /// A number from 1 to `max`.
    pub(super) fn count(&self, key: &str, max: u32) -> Result<u32> {
        self.in_range(key, self.require(key)?, max)
    }

    /// A number from 1 to `max`, if the key is there.
    pub(super) fn optional_count(&self, key: &str, max: u32) -> Result<Option<u32>> {
        self.optional(key)?.map(|n| self.in_range(key, n, max)).transpose()
    }

    fn in_range(&self, key: &str, n: u32, max: u32) -> Result<u32> {
        match (1..=max).contains(&n) {
            true => Ok(n),
            false => Err(self.error(key, &format!("is {n}, not 1 to {max}"))),
        }
    }

    /// A number from 1 to `max`, or a list of one for each block, of which those of the blocks
    /// `used` have to be equal.
    pub(super) fn count_of_blocks(
        &self,
        key: &str,
        max: u32,
        n_block: u32,
        used: impl Fn(usize) -> bool,
    ) -> Result<Option<u32>> {
        let list = match self.optional(key)? {
            None => return Ok(None),
            Some(OneOrMany::One(n)) => return self.in_range(key, n, max).map(Some),
            Some(OneOrMany::Many(list)) => list,
        };
        if list.len() < n_block as usize {
            let fault = format!("has {} entries for {n_block} blocks", list.len());
            return Err(self.error(key, &fault));
        }
        let blocks = list.into_iter().take(n_block as usize).enumerate();
        let mut values = blocks.filter(|&(block, _)| used(block)).map(|(_, n)| n);
        let Some(first) = values.next() else {
            return Err(self.error(key, "is a list, but no block uses it"));
        };
        match values.find(|&n| n != first) {
            None => self.in_range(key, first, max).map(Some),
            Some(other) => {
                let fault = format!("differs from block to block ({first}, {other})");
                Err(self.error(key, &fault))
            }
        }
    }

    /// A float that is neither infinite nor NaN, if the key is there.
    pub(super) fn float(&self, key: &str) -> Result<Option<f32>> {
        match self.optional::<f32>(key)? {
            Some(v) if !v.is_finite() => Err(self.error(key, &format!("is {v}"))),
            v => Ok(v),
        }
    }

    /// A finite float above 0, if the key is there.
    pub(super) fn positive_float(&self, key: &str) -> Result<Option<f32>> {
        match self.float(key)? {
            Some(v) if v <= 0.0 => Err(self.error(key, &format!("is {v}, not above 0"))),
            v => Ok(v),
        }
    }
}
