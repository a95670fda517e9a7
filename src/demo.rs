//! The model that is always there: `models/README.md` is its card.

use crate::{Gguf, Result};

static FILE: &[u8] = include_bytes!("../models/demo-q8_0.gguf");

/// Opens the demo model: `qwen4exp`, 1.85 million parameters in Q8_0, part of the program.
///
/// # Errors
/// None unless the build is broken: the file is read like any other.
pub fn open() -> Result<Gguf> {
    Gguf::from_static("the demo model", FILE)
}
