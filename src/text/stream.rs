//! Token bytes to text, piece by piece (spec/tokenizer.md 3).

/// Turns the byte pieces of one sequence's tokens into text as they come. Joined, its outputs equal
/// [`String::from_utf8_lossy`] of all the bytes, however they are cut.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The start of a character whose end has not come yet; at most 3 bytes.
    tail: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token ([`Tokenizer::piece`](super::Tokenizer::piece)) and returns
    /// the text that is complete now; bytes that cannot become a character turn into U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.tail.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.tail.len());
        let mut chunks = self.tail.utf8_chunks().peekable();
        let mut kept = 0;
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_continue = chunks.peek().is_none()
                && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if may_continue {
                kept = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.tail.drain(..self.tail.len() - kept);
        text
    }

    /// Ends the text: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.tail).into_owned();
        self.tail.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_back_only_an_unfinished_character() {
        let mut stream = StreamDecoder::new();
        assert_eq!(stream.push(b"a\xF0\x9F"), "a");
        assert_eq!(stream.push(b"\xA6"), "");
        assert_eq!(stream.push(b"\x99b"), "🦙b");
        assert_eq!(stream.push(b"\xFF"), "\u{FFFD}");
        assert_eq!(stream.push(b"\xE4\xBD"), "");
        assert_eq!(stream.push(b"x"), "\u{FFFD}x");
        assert_eq!(stream.push(b"\xE4\xBD"), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    /// Bytes that are often almost UTF-8.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            0x80..=0xBFu8,
            prop::sample::select(vec![0xE0, 0xED, 0xF0, 0xF4, 0xC2, 0x9F, 0xA0, b'a'])
        ];
        prop::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn joined_chunks_equal_the_lossy_whole(pieces in prop::collection::vec(bytes(), 0..12)) {
            let mut stream = StreamDecoder::new();
            let mut text = String::new();
            for piece in &pieces {
                text.push_str(&stream.push(piece));
                prop_assert!(stream.tail.len() <= 3);
            }
            text.push_str(&stream.finish());
            let bytes = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
