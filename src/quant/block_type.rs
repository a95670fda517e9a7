//! The tensor types of GGUF: one table row a type (spec/gguf.md 2).

use std::fmt;

macro_rules! block_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal $name:literal $elements:literal $bytes:literal,)*) => {
        /// How the elements of a tensor are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum BlockType {
            $($(#[$doc])* $variant,)*
        }

        impl BlockType {
            /// Every type, by rising id.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The type with this GGUF id; `None` for unknown and removed ids.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The GGUF type id.
            pub const fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// The name as quantisers print it, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements in one block; a row holds whole blocks.
            pub const fn block_elements(self) -> usize {
                match self { $(Self::$variant => $elements,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

block_types! {
    /// IEEE single precision.
    F32 = 0 "F32" 1 4,
    /// IEEE half precision.
    F16 = 1 "F16" 1 2,
    /// 4 bits, one scale.
    Q4_0 = 2 "Q4_0" 32 18,
    /// 4 bits, scale and minimum.
    Q4_1 = 3 "Q4_1" 32 20,
    /// 5 bits, one scale.
    Q5_0 = 6 "Q5_0" 32 22,
    /// 5 bits, scale and minimum.
    Q5_1 = 7 "Q5_1" 32 24,
    /// 8 bits, one scale.
    Q8_0 = 8 "Q8_0" 32 34,
    /// 8 bits with sums, for activations; never stored.
    Q8_1 = 9 "Q8_1" 32 36,
    /// 2 bits, 4-bit scales and minima.
    Q2K = 10 "Q2_K" 256 84,
    /// 3 bits, 6-bit scales.
    Q3K = 11 "Q3_K" 256 110,
    /// 4 bits, 6-bit scales and minima.
    Q4K = 12 "Q4_K" 256 144,
    /// 5 bits, 6-bit scales and minima.
    Q5K = 13 "Q5_K" 256 176,
    /// 6 bits, 8-bit scales.
    Q6K = 14 "Q6_K" 256 210,
    /// 8 bits with sums, for activations; never stored.
    Q8K = 15 "Q8_K" 256 292,
    /// 2.06 bits, grid of 8 values.
    Iq2Xxs = 16 "IQ2_XXS" 256 66,
    /// 2.31 bits, grid of 8 values.
    Iq2Xs = 17 "IQ2_XS" 256 74,
    /// 3.06 bits, grid of 4 values.
    Iq3Xxs = 18 "IQ3_XXS" 256 98,
    /// 1.56 bits, grid of 8 values.
    Iq1S = 19 "IQ1_S" 256 50,
    /// 4-bit indices into a non-linear table, one scale.
    Iq4Nl = 20 "IQ4_NL" 32 18,
    /// 3.44 bits, grid of 4 values.
    Iq3S = 21 "IQ3_S" 256 110,
    /// 2.56 bits, grid of 8 values.
    Iq2S = 22 "IQ2_S" 256 82,
    /// 4-bit indices into a non-linear table, 6-bit scales.
    Iq4Xs = 23 "IQ4_XS" 256 136,
    /// Signed byte.
    I8 = 24 "I8" 1 1,
    /// Signed 16-bit integer.
    I16 = 25 "I16" 1 2,
    /// Signed 32-bit integer.
    I32 = 26 "I32" 1 4,
    /// Signed 64-bit integer.
    I64 = 27 "I64" 1 8,
    /// IEEE double precision.
    F64 = 28 "F64" 1 8,
    /// 1.75 bits, grid of 8 values.
    Iq1M = 29 "IQ1_M" 256 56,
    /// Upper half of an IEEE single.
    Bf16 = 30 "BF16" 1 2,
    /// Ternary, five values a byte.
    Tq1_0 = 34 "TQ1_0" 256 54,
    /// Ternary, four values a byte.
    Tq2_0 = 35 "TQ2_0" 256 66,
    /// Microscaling 4-bit floats, power-of-two scale.
    Mxfp4 = 39 "MXFP4" 32 17,
    /// 4-bit floats, 8-bit float scales.
    Nvfp4 = 40 "NVFP4" 64 36,
    /// 1 bit, one scale.
    Q1_0 = 41 "Q1_0" 128 18,
    /// 2 bits, one scale.
    Q2_0 = 42 "Q2_0" 64 18,
}

impl BlockType {
    /// Bytes of a row of `ne0` elements; `None` if that is no whole number of blocks or overflows.
    pub const fn row_bytes(self, ne0: u64) -> Option<u64> {
        let elements = self.block_elements() as u64;
        if !ne0.is_multiple_of(elements) {
            return None;
        }
        (ne0 / elements).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
