//! Writing to stdout and stderr without the panics of `println!` when the reader has gone.

use std::{
    fmt,
    io::{self, Write},
};

use engine::{Error, Result};
use serde::Serialize;

/// Writes a part of the result to stdout, at once.
///
/// # Errors
/// [`Error::Io`] if stdout is closed.
pub(super) fn result(text: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(|e| Error::io("stdout", e))
}

/// Writes `value` to stdout as one JSON object.
pub(super) fn json(value: &impl Serialize) -> Result<()> {
    result(json_text(value)?)
}

/// `value` as JSON, indented.
pub(super) fn json_text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::io("stdout", e.into()))?;
    Ok(text + "\n")
}

/// Writes a line to stderr, which may be closed.
pub(super) fn note(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Asks for input on stderr.
pub(super) fn prompt(text: &str) {
    let mut out = io::stderr().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// `bytes` with a binary unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let digits = if unit == 0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_carry_their_unit() {
        let text = [0, 1023, 1024, 128 << 20, u64::MAX].map(size);
        assert_eq!(text, ["0 B", "1023 B", "1.0 KiB", "128.0 MiB", "16777216.0 TiB"]);
    }
}
