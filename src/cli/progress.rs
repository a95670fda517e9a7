//! Progress bars on stderr; nothing is drawn when it is not a terminal.

use std::fmt;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Bytes of weights on their way to the device.
pub(super) fn loading() -> ProgressBar {
    bar("loading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
}

/// Tokens of the prompt.
pub(super) fn prefill(tokens: usize) -> ProgressBar {
    let bar = bar("prompt {wide_bar} {pos}/{len} tokens {rate}, {eta} left");
    bar.set_length(tokens as u64);
    bar
}

/// Steps a second.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    // Only the bar would suffer.
    let _ = write!(out, "{:.1}/s", state.per_sec());
}

fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.with_key("rate", rate))
}
