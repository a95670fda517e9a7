//! Element types of the cache. A type is its bytes here and `shaders/kv/NAME.wgsl` on the device.

use crate::Error;
use std::{fmt, str::FromStr};

/// How the cache stores a key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes; values past ±65,504 are stored as ±65,504.
    F16,
}

impl KvType {
    const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// Name on the command line and of the shader fragment.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of `values` consecutive values, a multiple of 8.
    pub fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => values * 4,
            Self::F16 => values * 2,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Usage(format!("cache type `{name}` is not one of {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_named() {
        for ty in KvType::ALL {
            assert_eq!(ty.name().parse::<KvType>().unwrap(), ty);
        }
        let text = "q9".parse::<KvType>().unwrap_err().to_string();
        assert!(text.contains("`q9`") && text.contains("f32, f16"), "{text}");
    }
}
