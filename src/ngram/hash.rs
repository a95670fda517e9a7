//! From token ids to rows of the n-gram table.

use crate::{Error, Result};
use std::ops::Range;

/// Longest n-gram and most heads that a file may ask for (spec/architectures.md 2).
const MAX_NGRAM: usize = 8;
const MAX_HEADS: usize = 64;

/// What a file says of the hash, by its keys below `{arch}.ple`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashParams {
    /// Ids of the longest n-gram, 2 to 8; there are n-grams of 2 ids up to this many.
    pub ngram_size: u32,
    /// Rows looked up for every length of n-gram.
    pub heads_per_ngram: u32,
    /// The id that ends a text: ids before it count no more. Not the tokenizer's end of text.
    pub eos_token_id: u32,
    /// Factors of the ids, at least `ngram_size`; the newest id takes the first.
    pub layer_multipliers: Vec<u64>,
    /// First row of every head's part of the table; bigram heads first.
    pub head_offsets: Vec<u64>,
    /// Rows of every head's part of the table.
    pub head_vocab_sizes: Vec<u64>,
}

/// The n-gram hash of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    /// One for each id of the longest n-gram, newest id first.
    multipliers: Vec<u64>,
    eos: u32,
    heads_per_ngram: usize,
    heads: Vec<Head>,
}

/// A head's part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    offset: u64,
    size: u64,
}

impl NgramHash {
    /// Checks what a file says.
    ///
    /// # Errors
    /// [`Error::Model`] naming the key whose value is impossible.
    pub fn new(params: HashParams) -> Result<Self> {
        let wrong = |reason: String| Err(Error::Model(reason));
        let (ngram, per_ngram) = (params.ngram_size as usize, params.heads_per_ngram as usize);
        if !(2..=MAX_NGRAM).contains(&ngram) {
            return wrong(format!("`ple.ngram_size` is {ngram}, not 2 to {MAX_NGRAM}"));
        }
        let count = (ngram - 1).saturating_mul(per_ngram);
        if !(1..=MAX_HEADS).contains(&count) {
            return wrong(format!(
                "`ple.heads_per_ngram` is {per_ngram}, which makes {count} heads, not 1 to \
                 {MAX_HEADS}"
            ));
        }
        for (key, found, wanted) in [
            ("layer_multipliers", params.layer_multipliers.len(), ngram),
            ("head_offsets", params.head_offsets.len(), count),
            ("head_vocab_sizes", params.head_vocab_sizes.len(), count),
        ] {
            if found < wanted {
                return wrong(format!("`ple.{key}` has {found} entries, needed are {wanted}"));
            }
        }
        let mut multipliers = params.layer_multipliers;
        multipliers.truncate(ngram);
        let mut heads = Vec::with_capacity(count);
        let parts = params.head_offsets.into_iter().zip(params.head_vocab_sizes);
        for (h, (offset, size)) in parts.take(count).enumerate() {
            let end = offset.checked_add(size).filter(|end| i32::try_from(*end).is_ok());
            if size == 0 || end.is_none() {
                return wrong(format!(
                    "n-gram head {h} has {size} rows from row {offset}, not 1 or more of at most \
                     {} in all",
                    i32::MAX
                ));
            }
            heads.push(Head { offset, size });
        }
        Ok(Self { multipliers, eos: params.eos_token_id, heads_per_ngram: per_ngram, heads })
    }

    /// Rows looked up for a token.
    pub fn heads(&self) -> usize {
        self.heads.len()
    }

    /// Rows that a table needs for every hash to lie inside.
    pub fn table_rows(&self) -> u64 {
        self.heads.iter().map(|head| head.offset + head.size).max().unwrap_or(0)
    }

    /// The rows of `part` of `tokens`, which follow `past` in their sequence: `[part][heads]`. Of
    /// `past` only the last `ngram_size - 1` ids are looked at, so it may be cut to as many;
    /// shorter, it is the start of the sequence.
    pub fn rows(&self, past: &[u32], tokens: &[u32], part: Range<usize>) -> Vec<u64> {
        let mut rows = Vec::with_capacity(part.len() * self.heads());
        for t in part {
            let before = tokens[..t].iter().rev().chain(past.iter().rev()).copied();
            self.token_rows(tokens[t], before, &mut rows);
        }
        rows
    }

    /// Appends the rows of `token`, given the ids before it, newest first.
    fn token_rows(&self, token: u32, before: impl Iterator<Item = u32>, rows: &mut Vec<u64>) {
        // A text ends at the last end of text before the token: older ids count as that id too.
        let context = before.take_while(|id| *id != self.eos).chain(std::iter::repeat(self.eos));
        let mut factors = self.multipliers.iter();
        let product = |id: u32, factor: &u64| u64::from(id).wrapping_mul(*factor);
        let mut mix = factors.next().map_or(0, |factor| product(token, factor));
        let lengths = self.heads.chunks(self.heads_per_ngram);
        for ((factor, id), heads) in factors.zip(context).zip(lengths) {
            mix ^= product(id, factor);
            rows.extend(heads.iter().map(|head| mix % head.size + head.offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EOS: u32 = 248_044;

    /// Qwen3.8-Flash-Next's constants (spec/architectures.md 4.5.3).
    fn flash_next() -> HashParams {
        let primes = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171];
        let head_vocab_sizes: Vec<u64> = primes.iter().map(|p| 20_000_000 + p).collect();
        let head_offsets = head_vocab_sizes
            .iter()
            .scan(0, |end, size| {
                *end += size;
                Some(*end - size)
            })
            .collect();
        HashParams {
            ngram_size: 3,
            heads_per_ngram: 8,
            eos_token_id: EOS,
            layer_multipliers: vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071],
            head_offsets,
            head_vocab_sizes,
        }
    }

    fn hash() -> NgramHash {
        NgramHash::new(flash_next()).unwrap()
    }

    fn rows_of(past: &[u32], tokens: &[u32]) -> Vec<u64> {
        hash().rows(past, tokens, 0..tokens.len())
    }

    /// Section 7 of the specification.
    const FIRST_0: [u64; 16] = [
        768795, 32189829, 51641306, 71063218, 85886852, 104959504, 134316676, 154856127, 173280301,
        194832882, 202840854, 222492280, 256138797, 271010889, 296240796, 304432235,
    ];
    const FIRST_100: [u64; 16] = [
        5727835, 21884476, 43702108, 66434789, 84094509, 104112171, 134886528, 157314943,
        162363667, 189466439, 200618315, 232121522, 258547276, 266199001, 289022207, 305180972,
    ];
    const AFTER_100: [u64; 16] = [
        6669481, 25231135, 54517055, 75522994, 90676203, 102395039, 139974376, 143415227,
        164675732, 199178354, 201246635, 232214480, 253236281, 274617176, 281823939, 318456244,
    ];
    const AFTER_100_200: [u64; 16] = [
        6129193, 20484628, 57667260, 77728366, 86357215, 109234597, 123551585, 149309416,
        172664702, 184433127, 201501905, 227445817, 243341740, 279238932, 284538191, 311036336,
    ];

    #[test]
    fn a_sequence_begins_as_after_an_end_of_text() {
        assert_eq!(rows_of(&[], &[0]), FIRST_0);
        assert_eq!(rows_of(&[], &[100, 200]), [FIRST_100, AFTER_100].concat());
        assert_eq!(rows_of(&[7, EOS], &[100, 200]), [FIRST_100, AFTER_100].concat());
    }

    #[test]
    fn three_ids_make_all_rows() {
        let all = [FIRST_100, AFTER_100, AFTER_100_200].concat();
        assert_eq!(rows_of(&[], &[100, 200, 300]), all);
    }

    #[test]
    fn an_end_of_text_cuts_what_is_before_it_but_not_its_own_context() {
        let tokens = [5, 6, EOS, 100, 200, 300];
        let rows = rows_of(&[], &tokens);
        assert_eq!(rows[3 * 16..], [FIRST_100, AFTER_100, AFTER_100_200].concat());
        assert_ne!(rows[2 * 16..3 * 16], rows_of(&[], &[EOS]));
        assert_eq!(rows[2 * 16..3 * 16], rows_of(&[5, 6], &[EOS]));
    }

    #[test]
    fn steps_of_any_length_give_the_same_rows() {
        let tokens: Vec<u32> = (0..40).map(|i| if i % 7 == 5 { EOS } else { i * i * 31 }).collect();
        let whole = rows_of(&[], &tokens);
        for chunk in [1, 2, 3, 7] {
            let mut rows = Vec::new();
            for (i, part) in tokens.chunks(chunk).enumerate() {
                let past = &tokens[..i * chunk];
                let recent = &past[past.len().saturating_sub(2)..];
                assert_eq!(rows_of(past, part), rows_of(recent, part));
                let same = i * chunk..i * chunk + part.len();
                assert_eq!(rows_of(past, part), hash().rows(&[], &tokens, same));
                rows.extend(rows_of(past, part));
            }
            assert_eq!(rows, whole, "in chunks of {chunk}");
        }
    }

    #[test]
    fn every_row_lies_in_the_part_of_its_head() {
        let params = HashParams {
            ngram_size: 4,
            heads_per_ngram: 2,
            layer_multipliers: vec![u64::MAX, u64::MAX - 2, 3, 5],
            ..flash_next()
        };
        let hash = NgramHash::new(params.clone()).unwrap();
        let rows = hash.rows(&[u32::MAX], &[u32::MAX, 0, 1, u32::MAX - 1], 0..4);
        assert_eq!(rows.len(), 4 * hash.heads());
        for (i, row) in rows.into_iter().enumerate() {
            let first = params.head_offsets[i % 6];
            assert!((first..first + params.head_vocab_sizes[i % 6]).contains(&row), "{i}: {row}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        let error = |change: fn(&mut HashParams)| {
            let mut params = flash_next();
            change(&mut params);
            NgramHash::new(params).unwrap_err().to_string()
        };
        assert!(error(|p| p.ngram_size = 1).contains("`ple.ngram_size` is 1"));
        assert!(error(|p| p.ngram_size = 9).contains("`ple.ngram_size` is 9"));
        assert!(error(|p| p.heads_per_ngram = 0).contains("makes 0 heads"));
        assert!(error(|p| p.heads_per_ngram = 33).contains("makes 66 heads"));
        assert!(error(|p| p.heads_per_ngram = 9).contains("`ple.head_offsets` has 16 entries"));
        assert!(error(|p| p.layer_multipliers.truncate(2)).contains("has 2 entries, needed are 3"));
        assert!(error(|p| p.head_vocab_sizes[3] = 0).contains("n-gram head 3 has 0 rows"));
        assert!(error(|p| p.head_offsets[5] = u64::MAX).contains("n-gram head 5"));
        assert!(error(|p| p.head_offsets[15] = 1 << 31).contains("n-gram head 15"));
    }

    #[test]
    fn the_table_must_hold_the_last_row_of_the_last_head() {
        assert_eq!(hash().table_rows(), 320_001_446);
    }
}
