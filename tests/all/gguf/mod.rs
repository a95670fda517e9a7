//! GGUF files: what is read, every fault that has to be refused by name, and hostile bytes.

mod alignment;
mod faults;
mod hostile;
mod raw;
mod reading;
mod release;
mod split;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use engine::{Engine, EngineOptions, Gguf, Result};

/// An empty directory for the files of one test.
fn scratch(test: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gguf").join(test);
    // Left over from an earlier run, or not there.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A model of `tests/fixtures/models`.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

/// What the engine makes of a prompt of the model at `path`.
fn logits(path: &Path) -> Result<Vec<f32>> {
    let mut engine = Engine::load(path, &EngineOptions::default(), &mut |_, _| ())?;
    let mut sequence = engine.new_sequence()?;
    engine.prefill(&mut sequence, &[72, 101, 108], &mut |_| ControlFlow::Continue(()))?;
    engine.logits(&sequence)
}

/// Asserts that opening `path` fails with one sentence that holds all of `words`.
#[track_caller]
fn refused(path: impl AsRef<Path>, words: &[&str]) {
    let error = match Gguf::open(path) {
        Ok(_) => panic!("was opened, but should be refused for {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    }
    assert!(!error.contains('\n'), "`{error}` is more than one line");
}
