//! The tables of the IQ1, IQ2 and IQ3 formats (spec/gguf-iq-grids.md): a block refers to entries of 8
//! or 4 numbers. An entry is stored as a code: 2 bits a number for 8, 3 bits for 4, the first lowest.

/// 256 entries of 8 [`EIGHTS`].
pub(super) const IQ2_XXS: [u16; 256] = codes(include_str!("grids/iq2_xxs.txt"), 4);
/// 512 entries of 8 [`EIGHTS`].
pub(super) const IQ2_XS: [u16; 512] = codes(include_str!("grids/iq2_xs.txt"), 4);
/// 1024 entries of 8 [`EIGHTS`].
pub(super) const IQ2_S: [u16; 1024] = codes(include_str!("grids/iq2_s.txt"), 4);
/// 256 entries of 4 [`FOURS_XXS`].
pub(super) const IQ3_XXS: [u16; 256] = codes(include_str!("grids/iq3_xxs.txt"), 3);
/// 512 entries of 4 [`FOURS_S`].
pub(super) const IQ3_S: [u16; 512] = codes(include_str!("grids/iq3_s.txt"), 3);
/// 2048 entries of 8 [`TERNARY`].
pub(super) const IQ1: [u16; 2048] = codes(include_str!("grids/iq1.txt"), 4);

/// What 2 bits stand for in the IQ2 tables.
pub(super) const EIGHTS: [i8; 3] = [8, 25, 43];
/// What 2 bits stand for in the IQ1 table.
pub(super) const TERNARY: [i8; 3] = [-1, 0, 1];
/// What 3 bits stand for in the table of IQ3_XXS.
pub(super) const FOURS_XXS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// What 3 bits stand for in the table of IQ3_S.
pub(super) const FOURS_S: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// The 8 numbers of a code.
pub(super) fn eight(code: u16, levels: &[i8; 3]) -> [i8; 8] {
    std::array::from_fn(|j| levels[usize::from(code >> (2 * j)) & 3])
}

/// The 4 numbers of a code.
pub(super) fn four(code: u16, levels: &[i8; 8]) -> [i8; 4] {
    std::array::from_fn(|j| levels[usize::from(code >> (3 * j)) & 7])
}

/// All 8 sign bits from 7 that are stored: the number of set ones is even.
pub(super) fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() as u8 & 1) << 7)
}

/// `magnitude`, negative if bit `j` of `signs` is set.
pub(super) fn signed(magnitude: i8, signs: u8, j: usize) -> f32 {
    f32::from(if signs >> j & 1 == 1 { -magnitude } else { magnitude })
}

/// Reads `N` codes of `digits` hexadecimal digits; line ends mean nothing. Fails to compile unless
/// the text holds exactly these.
const fn codes<const N: usize>(text: &str, digits: usize) -> [u16; N] {
    let text = text.as_bytes();
    let mut codes = [0; N];
    let (mut at, mut seen) = (0, 0);
    while at < text.len() {
        if text[at] != b'\n' {
            let digit = (text[at] as char).to_digit(16).expect("a hexadecimal digit");
            codes[seen / digits] = codes[seen / digits] << 4 | digit as u16;
            seen += 1;
        }
        at += 1;
    }
    assert!(seen == N * digits);
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc32(bytes: impl Iterator<Item = i8>) -> u32 {
        !bytes.fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(byte as u8), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
            })
        })
    }

    #[test]
    fn expanded_tables_have_the_stated_checksums() {
        let eights = |codes: &'static [u16], levels: &'static [i8; 3]| {
            crc32(codes.iter().flat_map(move |c| eight(*c, levels)))
        };
        let fours = |codes: &'static [u16], levels: &'static [i8; 8]| {
            crc32(codes.iter().flat_map(move |c| four(*c, levels)))
        };
        assert_eq!(eights(&IQ2_XXS, &EIGHTS), 0x9924_ff02);
        assert_eq!(eights(&IQ2_XS, &EIGHTS), 0xfa1e_1bfd);
        assert_eq!(eights(&IQ2_S, &EIGHTS), 0x25ae_5bf1);
        assert_eq!(eights(&IQ1, &TERNARY), 0xb85e_6ccf);
        assert_eq!(fours(&IQ3_XXS, &FOURS_XXS), 0x07ba_9ed0);
        assert_eq!(fours(&IQ3_S, &FOURS_S), 0xf576_e4f3);
    }
}
