//! Ctrl-C: ends a generation in progress cleanly, and the program at any other time or when
//! pressed again.

use std::{
    ops::ControlFlow,
    process,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use super::output;

/// A signal reaches the whole process, hence statics: whether a generation is watching, and
/// whether it has been asked to end.
static WATCHED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// What shells report for a program ended by Ctrl-C.
const STATUS: i32 = 130;

/// Takes over Ctrl-C; once per process.
pub(super) fn install() {
    let handler = || {
        if !WATCHED.load(SeqCst) || REQUESTED.swap(true, SeqCst) {
            process::exit(STATUS);
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        output::note(format_args!("Ctrl-C will end the program at once: {error}"));
    }
}

/// Watches for Ctrl-C while it lives.
pub(super) struct Interrupt(());

impl Interrupt {
    pub(super) fn watch() -> Self {
        REQUESTED.store(false, SeqCst);
        WATCHED.store(true, SeqCst);
        Self(())
    }

    pub(super) fn requested(&self) -> bool {
        REQUESTED.load(SeqCst)
    }

    pub(super) fn flow(&self) -> ControlFlow<()> {
        if self.requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        WATCHED.store(false, SeqCst);
    }
}
