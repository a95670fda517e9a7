//! GGUF files: what is read, every fault that has to be refused by name, and hostile bytes.

mod alignment;
mod faults;
mod hostile;
mod raw;
mod reading;
mod split;

use std::path::PathBuf;

use engine::Gguf;

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

/// Asserts that opening `path` fails with one sentence that holds all of `words`.
#[track_caller]
fn refused(path: impl AsRef<std::path::Path>, words: &[&str]) {
    let error = match Gguf::open(path) {
        Ok(_) => panic!("was opened, but should be refused for {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    }
    assert!(!error.contains('\n'), "`{error}` is more than one line");
}
