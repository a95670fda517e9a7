//! The header of one file: everything before the tensor data (spec/gguf.md 1 and 6).

use std::collections::HashSet;
use std::path::Path;

use super::cursor::Cursor;
use super::metadata::Metadata;
use super::strings::Strings;
use super::tensor::{self, TensorInfo};
use super::value::{Array, Value, ValueType};
use crate::Result;

/// Bytes of the fixed fields: magic, version and the two counts.
pub(super) const FIXED_BYTES: u64 = 24;
/// The first four bytes of a file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The metadata key of the alignment.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of tensor data if no key says otherwise, in bytes.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// Most tensors or pairs in a file.
const MAX_RECORDS: u64 = 1_000_000;
/// Bytes of the smallest pair: a key of one byte, its type, and one byte.
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
/// Bytes of the smallest tensor entry: a name of one byte, one dimension, type and offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Longest key in bytes.
const MAX_KEY: usize = 65_535;
/// Most elements in an array.
const MAX_ELEMENTS: u64 = 1 << 30;

/// A parsed and checked header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    /// The tensors of this file, offsets from its start; `part` is 0.
    pub(super) tensors: Vec<TensorInfo>,
}

impl Header {
    /// Parses the header of `file`, of which `bytes` is the whole content.
    pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(file, bytes);
        let magic = cursor.take(4, "the magic")?;
        if magic != MAGIC {
            let magic = magic.escape_ascii();
            return Err(cursor.error(format!("is no GGUF file: it starts with `{magic}`")));
        }
        match cursor.u32("the version")? {
            2 | 3 => {}
            version if version & 0xffff == 0 && version != 0 => {
                return Err(cursor.error("has big-endian byte order, which is not supported"));
            }
            version => {
                return Err(cursor.error(format!("has GGUF version {version}, not 2 or 3")));
            }
        }
        let n_tensors = count(&mut cursor, "tensors", MIN_TENSOR)?;
        let n_pairs = count(&mut cursor, "metadata pairs", MIN_PAIR)?;

        let mut metadata = Metadata::new(file);
        for number in 0..n_pairs {
            let key = cursor.name(MAX_KEY, format_args!("the key of metadata pair {number}"))?;
            let value = value(&mut cursor, key)?;
            if !metadata.insert(key, value) {
                return Err(metadata.error(key, "is there twice"));
            }
        }
        let alignment = alignment(&metadata)?;

        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for number in 0..n_tensors {
            let tensor = TensorInfo::parse(&mut cursor, number)?;
            if !names.insert(tensor.name.clone()) {
                return Err(cursor.error(format!("tensor `{}` is there twice", tensor.name)));
            }
            tensors.push(tensor);
        }
        // A file holds less than 2^63 bytes, so this cannot overflow.
        let data_start = cursor.position().next_multiple_of(alignment);
        tensor::place(file, &mut tensors, data_start, alignment, bytes.len() as u64)?;
        Ok(Self { metadata, tensors })
    }
}

/// Reads a count of records of at least `min_bytes` each.
fn count(cursor: &mut Cursor, what: &str, min_bytes: u64) -> Result<u64> {
    let n = cursor.u64(format_args!("the number of {what}"))?;
    if n > MAX_RECORDS || n * min_bytes > cursor.remaining() {
        return Err(cursor.error(format!(
            "claims {n} {what}; the limit is {MAX_RECORDS}, and {} bytes are left for them",
            cursor.remaining()
        )));
    }
    Ok(n)
}

/// The alignment of tensor data, in bytes.
fn alignment(metadata: &Metadata) -> Result<u64> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    match *value {
        Value::U32(v) if v.is_power_of_two() && (8..=1 << 20).contains(&v) => Ok(v.into()),
        _ => Err(metadata.error(
            ALIGNMENT_KEY,
            format!("is the {} {value}, not a u32 power of two from 8 to 1048576", value.ty()),
        )),
    }
}

fn value(cursor: &mut Cursor, key: &str) -> Result<Value> {
    let ty = value_type(cursor, key, "value")?;
    let field = format!("the value of metadata key `{key}`");
    match ty {
        ValueType::String => Ok(Value::String(cursor.string(field)?.to_vec())),
        ValueType::Array => array(cursor, key).map(Value::Array),
        number => {
            let bytes = cursor.take(number.min_bytes(), field)?;
            // Only a bool can have bytes that are no value.
            Value::decode(number, bytes)
                .ok_or_else(|| cursor.error(format!("metadata key `{key}`: {bytes:?} is no {ty}")))
        }
    }
}

fn array(cursor: &mut Cursor, key: &str) -> Result<Array> {
    let ty = value_type(cursor, key, "element")?;
    if ty == ValueType::Array {
        return Err(cursor.error(format!("metadata key `{key}` is an array of arrays")));
    }
    let count = cursor.u64(format_args!("the length of metadata key `{key}`"))?;
    let size = count.checked_mul(ty.min_bytes()).filter(|&size| size <= cursor.remaining());
    let Some(size) = size.filter(|_| count <= MAX_ELEMENTS) else {
        return Err(cursor.error(format!(
            "metadata key `{key}` claims {count} elements of type {ty}; the limit is \
             {MAX_ELEMENTS}, and {} bytes are left for them",
            cursor.remaining()
        )));
    };
    if ty == ValueType::String {
        let mut strings = Strings::default();
        for i in 0..count {
            strings.push(cursor.string(format_args!("string {i} of metadata key `{key}`"))?);
        }
        return Ok(Array::Strings(strings));
    }
    let bytes = cursor.take(size, format_args!("the elements of metadata key `{key}`"))?;
    if let Some(wrong) = bytes.iter().find(|&&b| ty == ValueType::Bool && b > 1) {
        return Err(cursor.error(format!("metadata key `{key}`: {wrong} is no bool")));
    }
    Ok(Array::Numbers { ty, bytes: bytes.to_vec() })
}

fn value_type(cursor: &mut Cursor, key: &str, of: &str) -> Result<ValueType> {
    let id = cursor.u32(format_args!("the {of} type of metadata key `{key}`"))?;
    ValueType::from_id(id)
        .ok_or_else(|| cursor.error(format!("metadata key `{key}` has unknown {of} type {id}")))
}
