//! What a metadata value can be read as.

use super::strings::Strings;
use super::value::{Array, Value};

/// A type that a metadata value can be read as. Integers of every width are one kind, and so are
/// floats: converters differ in the width they write.
pub trait FromValue<'a>: Sized {
    /// What the value has to be, for errors: "an unsigned 32-bit integer".
    const EXPECTED: &'static str;
    /// The value, if it is of this kind and in range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

/// One value for all layers, or one for each: some keys are written in either form.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are what their names say")]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

fn integer(value: &Value) -> Option<i128> {
    Some(match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        _ => return None,
    })
}

fn elements<T: for<'v> FromValue<'v>>(value: &Value) -> Option<Vec<T>> {
    match value {
        Value::Array(array) => array.iter().map(|value| T::from_value(&value)).collect(),
        _ => None,
    }
}

macro_rules! integers {
    ($($type:ty, $one:literal, $many:literal, $either:literal;)*) => {$(
        impl FromValue<'_> for $type {
            const EXPECTED: &'static str = $one;
            fn from_value(value: &Value) -> Option<Self> {
                integer(value)?.try_into().ok()
            }
        }

        impl FromValue<'_> for Vec<$type> {
            const EXPECTED: &'static str = $many;
            fn from_value(value: &Value) -> Option<Self> {
                elements(value)
            }
        }

        impl FromValue<'_> for OneOrMany<$type> {
            const EXPECTED: &'static str = $either;
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Array(_) => elements(value).map(Self::Many),
                    _ => <$type>::from_value(value).map(Self::One),
                }
            }
        }
    )*};
}

integers! {
    i32, "a 32-bit integer", "an array of 32-bit integers",
        "a 32-bit integer or an array of them";
    u32, "an unsigned 32-bit integer", "an array of unsigned 32-bit integers",
        "an unsigned 32-bit integer or an array of them";
    u64, "an unsigned 64-bit integer", "an array of unsigned 64-bit integers",
        "an unsigned 64-bit integer or an array of them";
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of floats";
    fn from_value(value: &Value) -> Option<Self> {
        elements(value)
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<bool> {
    const EXPECTED: &'static str = "an array of bools";
    fn from_value(value: &Value) -> Option<Self> {
        elements(value)
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string of UTF-8";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(v) => str::from_utf8(v).ok(),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a Strings {
    const EXPECTED: &'static str = "an array of strings";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::Strings(v)) => Some(v),
            _ => None,
        }
    }
}
