//! The host half of the n-gram embedding (spec/architectures.md 4.5.3): which rows of the table
//! a token's last ids hash to, and reading them from a table that is larger than memory.
//!
//! ```text
//! ids ─hash─▶ rows ─request─▶ reader threads ─wait─▶ values ─upload─▶ products, ops::ple_gate,
//!                  (the layers before run meanwhile)                  ops::causal_conv
//! ```

mod hash;
mod read_at;
mod readers;
mod table;

pub use hash::{HashParams, NgramHash};
pub use readers::Pending;
pub use table::{NgramTable, Storage, TABLE};
