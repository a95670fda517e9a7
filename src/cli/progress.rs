//! Progress bars on stderr; nothing is drawn when it is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Bytes of weights on their way to the device.
pub(super) fn loading() -> ProgressBar {
    bar("loading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
}

/// Tokens of the prompt.
pub(super) fn prefill(tokens: usize) -> ProgressBar {
    let bar = bar("prompt {wide_bar} {pos}/{len} tokens {per_sec}, {eta} left");
    bar.set_length(tokens as u64);
    bar
}

fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
