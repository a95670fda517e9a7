//! What kernels look weights up in (`Planes::table`), as words.

use super::grids::EIGHTS;

/// What two nibbles stand for: word `a + 16 b` holds `values[a]` and `values[b]` as bytes, plus `up`,
/// twice.
pub(super) const fn pairs(values: &[i8; 16], up: i16) -> [u32; 256] {
    let mut words = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (low, high) = (values[i % 16] as i16 + up, values[i / 16] as i16 + up);
        words[i] = (low | high << 8) as u16 as u32 * 0x10001;
        i += 1;
    }
    words
}

/// One word a code of 8: the 2 bits of numbers 0 to 3 in the low nibbles of its bytes, of 4 to 7 in the
/// high ones.
pub(super) const fn nibbles<const N: usize>(codes: &[u16; N]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let (code, j) = (codes[i / 8], i % 8);
        words[i / 8] |= ((code >> (2 * j)) as u32 & 3) << (8 * (j % 4) + 4 * (j / 4));
        i += 1;
    }
    words
}

/// Two words a code of 8 [`EIGHTS`]: its numbers as bytes, plus 128. `WORDS` is twice `N`.
pub(super) const fn eights<const N: usize, const WORDS: usize>(codes: &[u16; N]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let mut i = 0;
    while i < 8 * N {
        let number = EIGHTS[(codes[i / 8] >> (2 * (i % 8))) as usize & 3];
        words[i / 4] |= (128 + number as u32) << (8 * (i % 4));
        i += 1;
    }
    words
}

/// One word a code of 4: its numbers as bytes, plus 128.
pub(super) const fn fours<const N: usize>(codes: &[u16; N], levels: &[i8; 8]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let number = levels[(codes[i / 4] >> (3 * (i % 4))) as usize & 7];
        words[i / 4] |= (128 + number as u32) << (8 * (i % 4));
        i += 1;
    }
    words
}

/// `numbers`, then two words for each 7 sign bits: 0xff in the bytes of the 8 numbers that they, and an
/// eighth one to make the number of set ones even, make negative. `WORDS` is 256 more than `N`.
pub(super) const fn with_even_signs<const N: usize, const WORDS: usize>(
    numbers: &[u32; N],
) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let mut i = 0;
    while i < N {
        words[i] = numbers[i];
        i += 1;
    }
    let mut bit = 0;
    while bit < 8 * 128 {
        let (bits, j): (usize, usize) = (bit / 8, bit % 8);
        let signs = bits | (bits.count_ones() as usize & 1) << 7;
        if signs >> j & 1 == 1 {
            words[N + bit / 4] |= 0xff << (8 * (j % 4));
        }
        bit += 1;
    }
    words
}
