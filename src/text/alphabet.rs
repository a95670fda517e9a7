//! The byte alphabet of byte-level BPE: 256 printable characters, one a byte (spec/tokenizer.md 2.2).

/// The character that stands for `byte`.
fn char_of(byte: u8) -> char {
    let code = match u32::from(byte) {
        code @ 0..=0x20 => 0x100 + code,
        code @ 0x7F..=0xA0 => 0x121 + (code - 0x7F),
        0xAD => 0x143,
        code => code,
    };
    char::from_u32(code).unwrap_or_default()
}

/// The byte that `character` stands for, if it is of the alphabet.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let byte = match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code,
        code @ 0x100..=0x120 => code - 0x100,
        code @ 0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The bytes of `text` as alphabet characters.
pub(super) fn from_bytes(text: &[u8]) -> String {
    text.iter().copied().map(char_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(
            from_bytes(b" \n\tA\x7F\xA0\xAD\xFF"),
            "\u{120}\u{10A}\u{109}A\u{121}\u{142}\u{143}ÿ"
        );
        for other in [' ', '\u{7F}', '\u{A0}', '\u{AD}', '\u{144}'] {
            assert_eq!(byte_of(other), None);
        }
    }
}
