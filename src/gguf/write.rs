//! Writing GGUF files, for tests, benches and synthetic models.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC};
use super::split::{COUNT_KEY, NUMBER_KEY, TENSORS_KEY, suffix};
use super::tensor::{TensorInfo, data_size};
use super::value::{Value, encode_string};
use crate::quant::BlockType;
use crate::{Error, Result};

/// The version of the format that is written.
const VERSION: u32 = 3;

/// A model to be written: its metadata and the list of its tensors.
///
/// Tensor data is asked for when it is written, one tensor after the other, so a model need not
/// fit in memory. Data is aligned to `general.alignment` if that is set, else to 32 bytes.
///
/// ```no_run
/// use engine::gguf::write::Writer;
/// use engine::quant::BlockType;
///
/// let mut model = Writer::default();
/// model.set("general.architecture", "llama").set("llama.block_count", 2u32);
/// model.tensor("output_norm.weight", BlockType::F32, &[64]);
/// model.write("ones.gguf", |tensor, sink| {
///     sink.write_all(&1f32.to_le_bytes().repeat(tensor.elements() as usize))
/// })?;
/// # Ok::<(), engine::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    ty: BlockType,
    shape: Vec<u64>,
}

impl Writer {
    /// Sets a metadata value, in place of an earlier one of the same key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Removes a metadata value.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Appends a tensor; `shape` has 1 to 4 dimensions, the contiguous one first.
    pub fn tensor(&mut self, name: &str, ty: BlockType, shape: &[u64]) -> &mut Self {
        self.tensors.push(Tensor { name: name.to_owned(), ty, shape: shape.to_vec() });
        self
    }

    /// Writes one file. `data` is called once for each tensor, in order, and has to write exactly
    /// its `size` bytes.
    ///
    /// # Errors
    /// The file cannot be written, a shape is impossible, or `data` writes too little or too much.
    pub fn write(&self, path: impl AsRef<Path>, mut data: impl DataSource) -> Result<()> {
        write_file(path.as_ref(), 0, &self.metadata, &self.tensors, &mut data)
    }

    /// Writes a set of files, `PREFIX-00001-of-0000N.gguf` and so on, of at most
    /// `tensors_per_part` tensors each, and returns their paths. The first holds all metadata.
    ///
    /// # Errors
    /// As [`Writer::write`]; also a set of more than 65,535 parts.
    pub fn write_split(
        &self,
        prefix: impl AsRef<Path>,
        tensors_per_part: usize,
        mut data: impl DataSource,
    ) -> Result<Vec<PathBuf>> {
        let prefix = prefix.as_ref();
        let parts: Vec<_> = self.tensors.chunks(tensors_per_part.max(1)).collect();
        let count = u16::try_from(parts.len())
            .map_err(|_| Error::gguf(prefix, format!("would have {} parts", parts.len())))?;
        let mut paths = Vec::new();
        for (number, tensors) in (0..count).zip(parts) {
            let mut metadata = if number == 0 { self.metadata.clone() } else { Vec::new() };
            metadata.push((NUMBER_KEY.to_owned(), number.into()));
            metadata.push((COUNT_KEY.to_owned(), count.into()));
            metadata.push((TENSORS_KEY.to_owned(), (self.tensors.len() as i32).into()));
            let mut path = prefix.as_os_str().to_owned();
            path.push(suffix(number.into(), count.into()));
            let path = PathBuf::from(path);
            write_file(&path, number.into(), &metadata, tensors, &mut data)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// What writes the data of the tensor it is called with.
pub trait DataSource: FnMut(&TensorInfo, &mut dyn Write) -> io::Result<()> {}

impl<F: FnMut(&TensorInfo, &mut dyn Write) -> io::Result<()>> DataSource for F {}

fn write_file(
    path: &Path,
    part: usize,
    metadata: &[(String, Value)],
    tensors: &[Tensor],
    data: &mut impl DataSource,
) -> Result<()> {
    let io = |source| Error::io(path, source);
    let alignment = match metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        Some((_, Value::U32(v))) if v.is_power_of_two() => u64::from(*v),
        Some((key, value)) => {
            return Err(Error::gguf(path, format!("`{key}` would be {value}, no power of two")));
        }
        None => DEFAULT_ALIGNMENT,
    };
    let mut infos = Vec::with_capacity(tensors.len());
    let mut offset = 0;
    for tensor in tensors {
        let mut info = info(tensor)
            .map_err(|fault| Error::gguf(path, format!("tensor `{}` {fault}", tensor.name)))?;
        (info.part, info.offset) = (part, offset);
        // A sum that overflows cannot be written, so the offset then does not matter.
        offset = offset.saturating_add(info.size).checked_next_multiple_of(alignment).unwrap_or(0);
        infos.push(info);
    }
    let mut out = Counted { sink: BufWriter::new(File::create(path).map_err(io)?), written: 0 };
    out.write_all(&header(metadata, &infos)).map_err(io)?;
    for mut info in infos {
        out.pad(alignment).map_err(io)?;
        info.offset = out.written;
        data(&info, &mut out).map_err(io)?;
        let written = out.written - info.offset;
        if written != info.size {
            let TensorInfo { name, size, .. } = info;
            let reason = format!("tensor `{name}` got {written} bytes of data, not {size}");
            return Err(Error::gguf(path, reason));
        }
    }
    out.pad(alignment).and_then(|()| out.flush()).map_err(io)
}

/// The table entry, not placed yet. The error continues a sentence that names the tensor.
fn info(tensor: &Tensor) -> std::result::Result<TensorInfo, String> {
    let Tensor { name, ty, shape } = tensor;
    let mut dims = [1; 4];
    match dims.get_mut(..shape.len()) {
        Some(used) if !used.is_empty() => used.copy_from_slice(shape),
        _ => return Err(format!("cannot have shape {shape:?}")),
    }
    Ok(TensorInfo {
        name: name.clone(),
        dims,
        n_dims: shape.len(),
        ty: *ty,
        part: 0,
        offset: 0,
        size: data_size(*ty, &dims)?,
    })
}

/// Everything before the tensor data, not padded.
fn header(metadata: &[(String, Value)], tensors: &[TensorInfo]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        encode_string(key.as_bytes(), &mut out);
        out.extend_from_slice(&value.ty().id().to_le_bytes());
        value.encode(&mut out);
    }
    for tensor in tensors {
        encode_string(tensor.name.as_bytes(), &mut out);
        out.extend_from_slice(&(tensor.shape().len() as u32).to_le_bytes());
        for dim in tensor.shape() {
            out.extend_from_slice(&dim.to_le_bytes());
        }
        out.extend_from_slice(&tensor.ty.id().to_le_bytes());
        out.extend_from_slice(&tensor.offset.to_le_bytes());
    }
    out
}

/// Counts what is written, to place and to check tensors.
struct Counted<W> {
    sink: W,
    written: u64,
}

impl<W: Write> Counted<W> {
    /// Zeros up to the next multiple of `alignment`.
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let zeros = self.written.next_multiple_of(alignment) - self.written;
        io::copy(&mut io::repeat(0).take(zeros), self).map(|_| ())
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.sink.write(buf)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
