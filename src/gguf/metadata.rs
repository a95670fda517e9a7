//! The key/value pairs of a file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::convert::FromValue;
use super::value::Value;
use crate::{Error, Result};

/// The key/value pairs of a file, in its order.
///
/// Typed reads take the type from the caller: `metadata.require::<u32>("llama.block_count")`,
/// `metadata.optional::<&str>("general.name")`. Their errors name file, key, and what was found.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    /// No pairs yet; `file` is named by errors.
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), ..Self::default() }
    }

    /// These pairs, the first of each key; errors call their source `name`.
    pub fn from_pairs(name: &str, pairs: impl IntoIterator<Item = (String, Value)>) -> Self {
        let mut metadata = Self::new(Path::new(name));
        for (key, value) in pairs {
            metadata.insert(&key, value);
        }
        metadata
    }

    /// Appends a pair; false, and nothing changed, if the key is there already.
    pub(super) fn insert(&mut self, key: &str, value: Value) -> bool {
        if self.by_key.contains_key(key) {
            return false;
        }
        self.by_key.insert(key.to_owned(), self.entries.len());
        self.entries.push((key.to_owned(), value));
        true
    }

    /// The value of any type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).and_then(|&i| self.entries.get(i)).map(|(_, value)| value)
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value as `T`, or `None` if the key is missing.
    ///
    /// # Errors
    /// The value is of another kind or does not fit.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).ok_or_else(|| {
            self.error(key, format!("is the {} {value}, not {}", value.ty(), T::EXPECTED))
        })
    }

    /// The value as `T`.
    ///
    /// # Errors
    /// The key is missing, or the value is of another kind or does not fit.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.optional(key)?
            .ok_or_else(|| self.error(key, format!("is missing; it has to be {}", T::EXPECTED)))
    }

    /// An error about the value of `key`; `fault` continues the sentence.
    pub fn error(&self, key: &str, fault: impl AsRef<str>) -> Error {
        Error::gguf(&self.file, format!("metadata key `{key}` {}", fault.as_ref()))
    }
}
