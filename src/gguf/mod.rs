//! GGUF files: metadata, tensor table, tensor data (spec/gguf.md).
//!
//! A file is untrusted: every length, count, offset and type is checked before it is used or
//! memory is reserved for it, and a wrong one is an error that names file, field and value.
//! Nothing here panics, and nothing knows of the GPU or of models.

mod convert;
mod cursor;
mod fingerprint;
mod header;
mod metadata;
mod split;
mod strings;
mod tensor;
mod value;
pub mod write;

pub use convert::{FromValue, OneOrMany};
pub use metadata::Metadata;
pub use strings::Strings;
pub use tensor::TensorInfo;
pub use value::{Array, Value, ValueType};

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};
use header::Header;
use split::Split;

/// An opened GGUF model: one file, or a set of parts that reads as one.
///
/// Tensor data is read in place from a memory map, never copied to a second resident place, and
/// can be let go of once it is on the device ([`Gguf::release`]). A file that another program cuts short *while* it is mapped ends this process with SIGBUS when
/// the missing pages are read; the length is therefore compared again after mapping, which
/// catches a download still in progress, and model files must not be rewritten in place while
/// the engine runs (replacing them by renaming is safe).
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Map(File, Mmap),
    Static(&'static [u8]),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Map(_, map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

/// Where the blocks of a tensor lie, for reading them later.
#[derive(Debug)]
pub enum Origin {
    /// In this file, from [`TensorInfo::offset`]. Unlike the map, positioned reads of a file cut
    /// short fail without ending the process.
    File(File),
    /// In the program.
    Static(&'static [u8]),
}

impl Gguf {
    /// Opens the model that `path` is, or is any part of. Parts are looked for beside `path`.
    ///
    /// # Errors
    /// A file that cannot be read, breaks the format, or belongs to another set of parts.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (part, header) = open_part(path.as_ref())?;
        let Some(split) = Split::of(&part.path, &header.metadata)? else {
            return Self::join(vec![(part, header)]);
        };
        let gguf = Self::join(split.open_set(part, header)?)?;
        split.check_total(path.as_ref(), gguf.tensors.len())?;
        Ok(gguf)
    }

    /// Opens a model in one file that is part of the program; errors call it `name`.
    ///
    /// # Errors
    /// Bytes that break the format.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self> {
        let header = Header::parse(Path::new(name), bytes)?;
        Self::join(vec![(Part { path: name.into(), bytes: Bytes::Static(bytes) }, header)])
    }

    fn join(set: Vec<(Part, Header)>) -> Result<Self> {
        let mut parts = Vec::with_capacity(set.len());
        let mut metadata = None;
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for (number, (part, header)) in set.into_iter().enumerate() {
            for mut tensor in header.tensors {
                if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                    return Err(Error::gguf(
                        &part.path,
                        format!("tensor `{}` is there twice", tensor.name),
                    ));
                }
                tensor.part = number;
                tensors.push(tensor);
            }
            metadata.get_or_insert(header.metadata);
            parts.push(part);
        }
        let metadata = metadata.unwrap_or_default();
        Ok(Self { parts, metadata, tensors, by_name })
    }

    /// The metadata, that of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order, part after part.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, such as `blk.0.attn_q.weight`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// The blocks of a tensor of this model, read in place. Empty for a tensor of another model
    /// whose range does not exist here.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.parts.get(tensor.part).and_then(|part| blocks(&part.bytes, tensor)).unwrap_or_default()
    }

    /// Where a tensor of this model lies, and the path of that file.
    ///
    /// # Errors
    /// [`Error::Model`] for a tensor of another model, [`Error::Io`] when the system has no
    /// descriptor left.
    pub fn origin(&self, tensor: &TensorInfo) -> Result<(&Path, Origin)> {
        let foreign = || Error::Model(format!("tensor `{}` is of another model", tensor.name));
        let part = self.parts.get(tensor.part).ok_or_else(foreign)?;
        let origin = match &part.bytes {
            Bytes::Map(file, _) => {
                Origin::File(file.try_clone().map_err(|e| Error::io(&part.path, e))?)
            }
            Bytes::Static(bytes) => Origin::Static(blocks(bytes, tensor).ok_or_else(foreign)?),
        };
        Ok((&part.path, origin))
    }

    /// Lets go of the pages of some `bytes` of a tensor's data that were read: they leave this
    /// process's resident set at once, not only when memory is short. Reading them again takes
    /// them from the file. The system forgets them too if `uncache`: where the device's memory is
    /// the system's, they are a second copy.
    pub fn release(&self, tensor: &TensorInfo, bytes: Range<u64>, uncache: bool) {
        let Some(part) = self.parts.get(tensor.part) else { return };
        let size = bytes.end.min(tensor.size).saturating_sub(bytes.start);
        if size > 0 && !self.data(tensor).is_empty() {
            part.release(tensor.offset + bytes.start, size, uncache);
        }
    }

    /// [`Self::release`] of whole files: what lies between tensors as well.
    pub fn release_all(&self, uncache: bool) {
        for part in &self.parts {
            part.release(0, part.bytes.len() as u64, uncache);
        }
    }

    /// The files, in part order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Bytes of all parts together.
    pub fn file_len(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }
}

impl Part {
    #[cfg(unix)]
    fn release(&self, offset: u64, size: u64, uncache: bool) {
        use memmap2::UncheckedAdvice::DontNeed;
        let Bytes::Map(file, map) = &self.bytes else { return };
        // SAFETY: the map is read-only and backed by the file, so a page that is dropped reads
        // the same when it is touched again.
        let advised =
            unsafe { map.unchecked_advise_range(DontNeed, offset as usize, size as usize) };
        // After that: the system keeps pages that are mapped.
        let forgotten = if uncache { forget(file, offset, size) } else { Ok(()) };
        if let Err(error) = advised.and(forgotten) {
            tracing::debug!("{}: pages stay resident: {error}", self.path.display());
        }
    }

    /// Other systems trim the resident set by themselves.
    #[cfg(not(unix))]
    fn release(&self, _offset: u64, _size: u64, _uncache: bool) {}
}

/// Drops whole pages of `file` from the system's cache.
#[cfg(target_os = "linux")]
fn forget(file: &File, offset: u64, size: u64) -> std::io::Result<()> {
    use rustix::fs::{Advice, fadvise};
    Ok(fadvise(file, offset, std::num::NonZeroU64::new(size), Advice::DontNeed)?)
}

/// There is no such call.
#[cfg(all(unix, not(target_os = "linux")))]
fn forget(_file: &File, _offset: u64, _size: u64) -> std::io::Result<()> {
    Ok(())
}

/// The blocks of `tensor` among the bytes of its part.
fn blocks<'a>(part: &'a [u8], tensor: &TensorInfo) -> Option<&'a [u8]> {
    let start = usize::try_from(tensor.offset).ok()?;
    let size = usize::try_from(tensor.size).ok()?;
    part.get(start..start.checked_add(size)?)
}

/// Maps one file and parses its header.
fn open_part(path: &Path) -> Result<(Part, Header)> {
    let io = |source| Error::io(path, source);
    // Asked before opening: opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::gguf(path, "is not a regular file"));
    }
    let file = File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    if len < header::FIXED_BYTES {
        return Err(Error::gguf(
            path,
            format!("is {len} bytes long, a GGUF header is {} bytes", header::FIXED_BYTES),
        ));
    }
    // SAFETY: the map is only read. Changing the file under it is undefined behaviour in theory
    // and a SIGBUS in practice; the type's documentation tells users not to.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    let now = file.metadata().map_err(io)?.len();
    if now != map.len() as u64 {
        return Err(Error::gguf(
            path,
            format!("changed from {} to {now} bytes while it was opened", map.len()),
        ));
    }
    let header = Header::parse(path, &map)?;
    Ok((Part { path: path.to_owned(), bytes: Bytes::Map(file, map) }, header))
}
