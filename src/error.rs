//! The engine's one error type. Each message is one sentence that names the file, key, tensor,
//! flag or op it is about; `main` prints it and turns it into an exit status.

use std::path::{Path, PathBuf};

/// Result of every fallible engine call.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by the part of the input or machine that is at fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A GGUF file that cannot be read or breaks the format.
    #[error("{}: {reason}", file.display())]
    Gguf {
        /// The part that is wrong.
        file: PathBuf,
        /// One sentence naming the field, its value and what was expected.
        reason: String,
    },
    /// A well-formed file whose metadata or tensors do not make a model we run.
    #[error("model: {0}")]
    Model(String),
    /// Vocabulary, merges or pre-tokenizer are wrong, or text cannot be tokenised.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template failed or rejected the messages; holds the template's own sentence.
    #[error("chat template: {0}")]
    Template(String),
    /// Logits or sampling parameters that allow no choice.
    #[error("sampling: {0}")]
    Sampling(String),
    /// No usable adapter, or the device failed or lacks a limit.
    #[error("device: {0}")]
    Device(String),
    /// Memory that is not there.
    #[error("memory: {0}")]
    Memory(String),
    /// A shader variant that is unknown or does not validate; names it.
    #[error("shader: {0}")]
    Shader(String),
    /// More tokens than the context holds.
    #[error("context: {0}")]
    Context(String),
    /// A session file that is damaged or of something else.
    #[error("{}: {reason}", file.display())]
    Session {
        /// The file concerned.
        file: PathBuf,
        /// The rest of the sentence: what differs.
        reason: String,
    },
    /// A wrong flag or argument (exit status 2).
    #[error("{0}")]
    Usage(String),
    /// An operating system error on a path.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    /// A format error in `file`.
    pub fn gguf(file: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Self::Gguf { file: file.as_ref().to_owned(), reason: reason.into() }
    }

    /// An operating system error on `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// The process exit status: 2 for wrong usage, 1 for everything else.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}
