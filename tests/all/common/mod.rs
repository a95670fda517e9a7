//! What the integration tests share.

pub(crate) mod devices;
pub(crate) mod edited;
pub(crate) mod expected;
pub(crate) mod forward64;
pub(crate) mod zeros;

#[path = "../../../benches/synthetic/mod.rs"]
pub(crate) mod synthetic;

/// Says what is skipped and why, past the test harness, which keeps what passing tests print.
pub(crate) fn skipped(what: impl std::fmt::Display) {
    use std::io::Write;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}
