//! Which rows of a step's tensors an op works on.

/// Consecutive tokens of one sequence, and their rows in the tensors of a step: what touches the
/// state of a sequence works on these, everything else on the rows of all sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Row of the first one.
    pub first: u32,
    /// How many there are.
    pub n: u32,
}

impl Tokens {
    /// One past the last row.
    pub fn end(self) -> u32 {
        self.first + self.n
    }
}

/// The first `n` rows: the step has one sequence.
impl From<u32> for Tokens {
    fn from(n: u32) -> Self {
        Self { first: 0, n }
    }
}
