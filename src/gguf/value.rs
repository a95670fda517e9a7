//! Metadata values: the thirteen types of the format (spec/gguf.md 1).

use std::fmt;

use super::strings::Strings;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the types they hold")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// UTF-8 by the format, but not trusted to be.
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// The type of a value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the types of Value")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// An array of numbers or bools, or of strings. Arrays of arrays do not exist.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Little-endian elements of a type that is neither string nor array.
    Numbers {
        /// The type of each element.
        ty: ValueType,
        /// Their bytes as they lie in the file.
        bytes: Vec<u8>,
    },
    /// Strings, as bytes.
    Strings(Strings),
}

/// The types of a fixed size, in one table: type, variant.
macro_rules! numbers {
    ($($type:ident $variant:ident),*) => {
        impl Value {
            /// Decodes one number or bool of type `ty`; `None` if `bytes` does not hold one.
            pub(super) fn decode(ty: ValueType, bytes: &[u8]) -> Option<Self> {
                Some(match (ty, bytes) {
                    $((ValueType::$variant, _) => {
                        Self::$variant($type::from_le_bytes(bytes.try_into().ok()?))
                    })*
                    (ValueType::Bool, [0]) => Self::Bool(false),
                    (ValueType::Bool, [1]) => Self::Bool(true),
                    _ => return None,
                })
            }

            /// Appends the value as it lies in a file, without its type.
            pub(super) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(v) => out.extend_from_slice(&v.to_le_bytes()),)*
                    Self::Bool(v) => out.push(u8::from(*v)),
                    Self::String(v) => encode_string(v, out),
                    Self::Array(v) => v.encode(out),
                }
            }
        }

        $(
            impl From<$type> for Value {
                fn from(v: $type) -> Self {
                    Self::$variant(v)
                }
            }

            impl From<&[$type]> for Value {
                fn from(v: &[$type]) -> Self {
                    let bytes = v.iter().flat_map(|v| v.to_le_bytes()).collect();
                    Self::Array(Array::Numbers { ty: ValueType::$variant, bytes })
                }
            }
        )*
    };
}

numbers!(u8 U8, i8 I8, u16 U16, i16 I16, u32 U32, i32 I32, f32 F32, u64 U64, i64 I64, f64 F64);

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}

impl From<&[bool]> for Value {
    fn from(v: &[bool]) -> Self {
        let bytes = v.iter().map(|&v| u8::from(v)).collect();
        Self::Array(Array::Numbers { ty: ValueType::Bool, bytes })
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::String(v.as_bytes().to_vec())
    }
}

impl From<Strings> for Value {
    fn from(v: Strings) -> Self {
        Self::Array(Array::Strings(v))
    }
}

/// Appends a string as it lies in a file.
pub(super) fn encode_string(string: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}

impl ValueType {
    /// By rising id.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id in a file.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in a file.
    pub(super) fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a value; of a string or array, of the smallest one.
    pub(super) fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

impl Value {
    /// The type of the value.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }
}

impl Array {
    /// The type of each element.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::Numbers { ty, .. } => *ty,
            Self::Strings(_) => ValueType::String,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers { ty, bytes } => bytes.len() / ty.min_bytes() as usize,
            Self::Strings(strings) => strings.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        (0..self.len()).filter_map(|i| match self {
            Self::Numbers { ty, bytes } => {
                let size = ty.min_bytes() as usize;
                Value::decode(*ty, bytes.get(i * size..(i + 1) * size)?)
            }
            Self::Strings(strings) => strings.get(i).map(|s| Value::String(s.to_vec())),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ty().id().to_le_bytes());
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        match self {
            Self::Numbers { bytes, .. } => out.extend_from_slice(bytes),
            Self::Strings(strings) => strings.iter().for_each(|s| encode_string(s, out)),
        }
    }
}

/// Shows a value for people: long strings and arrays are abridged.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            // Debug keeps small floats short: 1e-6.
            Self::F32(v) => write!(f, "{v:?}"),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => write_string(f, v),
            Self::Array(v) => write_array(f, v),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => write!(f, "{v:?}"),
        }
    }
}

fn write_string(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(SHOWN) {
        None => write!(f, "{text:?}"),
        Some((end, _)) => write!(f, "{:?}… ({} bytes)", &text[..end], bytes.len()),
    }
}

fn write_array(f: &mut fmt::Formatter<'_>, array: &Array) -> fmt::Result {
    const SHOWN: usize = 8;
    f.write_str("[")?;
    for (i, value) in array.iter().take(SHOWN).enumerate() {
        write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
    }
    if array.len() > SHOWN {
        write!(f, ", … {} in all", array.len())?;
    }
    f.write_str("]")
}
