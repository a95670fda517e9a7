//! Element types of the cache. A type is its bytes here and `shaders/kv/NAME.wgsl` on the device.

use crate::{Error, Result};
use std::{fmt, str::FromStr};

/// How the cache stores a key or value.
///
/// The quantised ones have blocks of 32 values with an f16 scale, as in GGUF's formats of these
/// names (spec/gguf.md 3.1), in planes: of every [`Self::TILE`] rows (a row is what a token has of
/// all heads) first the values and then the scales. So rows from a multiple of that on are one
/// range of bytes, and lanes read whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes; values past ±65,504 are stored as ±65,504.
    F16,
    /// 2 bytes, the upper half of an f32.
    Bf16,
    /// 34 bytes for 32 values of up to 127 steps.
    Q8_0,
    /// 18 bytes for 32 values of up to 8 steps.
    Q4_0,
}

impl KvType {
    /// All types.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// Rows that lie together; buffers hold whole tiles.
    pub const TILE: u32 = 8;

    /// Name on the command line and of the shader fragment.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bytes of `values` values and of their scales; whole heads, or tiles of whole rows.
    pub fn parts(self, values: u64) -> [u64; 2] {
        match self {
            Self::F32 => [values * 4, 0],
            Self::F16 | Self::Bf16 => [values * 2, 0],
            Self::Q8_0 => [values, values / 16],
            Self::Q4_0 => [values / 2, values / 16],
        }
    }

    /// Bytes of `values` values, scales included.
    pub fn bytes(self, values: u64) -> u64 {
        self.parts(values).iter().sum()
    }

    /// Checks that heads of `head_dim` values can be stored.
    ///
    /// # Errors
    /// [`Error::Usage`] for a head size that is not a multiple of 64 with a quantised type: the
    /// scales of a head are whole words.
    pub fn check(self, head_dim: u32) -> Result<()> {
        if matches!(self, Self::F32 | Self::F16 | Self::Bf16) || head_dim.is_multiple_of(64) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "cache type {self} is for heads of a multiple of 64 values, and this model's have \
             {head_dim}: f32, f16 and bf16 are for any"
        )))
    }

    /// The type of index keys beside attention keys of this type: they choose what is read, so
    /// they are not quantised with it (spec/kv-offload.md 2).
    pub fn of_index(self) -> Self {
        if self == Self::F32 { Self::F32 } else { Self::F16 }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
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
        let text = "q5_1".parse::<KvType>().unwrap_err().to_string();
        assert!(text.contains("`q5_1`") && text.contains("f32, f16, bf16, q8_0, q4_0"), "{text}");
    }

    /// The table of spec/kv-offload.md 7: attention layers, key-value heads, head size, then
    /// bytes a token in f16, q8_0 and q4_0.
    #[test]
    fn bytes_are_those_of_the_specification() {
        for (layers, n_kv, head_dim, want) in [
            (32, 8, 128, [131_072, 69_632, 36_864]),
            (36, 8, 128, [147_456, 78_336, 41_472]),
            (48, 4, 128, [98_304, 52_224, 27_648]),
            (12, 2, 256, [24_576, 13_056, 6_912]),
            (6, 2, 256, [12_288, 6_528, 3_456]),
            (8, 4, 256, [32_768, 17_408, 9_216]),
            (16, 4, 256, [65_536, 34_816, 18_432]),
            (10, 2, 256, [20_480, 10_880, 5_760]),
            (15, 2, 256, [30_720, 16_320, 8_640]),
        ] {
            let token = |ty: KvType| 2 * layers * ty.bytes(n_kv * head_dim);
            assert_eq!([KvType::F16, KvType::Q8_0, KvType::Q4_0].map(token), want);
            assert_eq!(token(KvType::Bf16), want[0]);
            assert_eq!(token(KvType::F32), 2 * want[0]);
        }
    }

    #[test]
    fn odd_head_sizes_are_refused_with_quantised_types_only() {
        for ty in KvType::ALL {
            let quantised = matches!(ty, KvType::Q8_0 | KvType::Q4_0);
            for head_dim in [8, 32, 96, 160] {
                match ty.check(head_dim) {
                    Ok(()) => assert!(!quantised, "{ty}, {head_dim}"),
                    Err(e) => assert!(quantised && e.to_string().contains(&head_dim.to_string())),
                }
            }
            ty.check(64).unwrap();
            ty.check(256).unwrap();
        }
    }

    #[test]
    fn index_keys_keep_their_precision() {
        let index = KvType::ALL.map(KvType::of_index);
        assert_eq!(index, [KvType::F32, KvType::F16, KvType::F16, KvType::F16, KvType::F16]);
    }
}
