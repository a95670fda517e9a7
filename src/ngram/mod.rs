//! The host half of the n-gram embedding (spec/architectures.md 4.5.3): which rows of the table
//! a token's last ids hash to, and reading them from a table that is larger than memory.
//!
//! The device half is in `ops`.

mod hash;

pub use hash::{HashParams, NgramHash};
