//! What `--session` keeps of a conversation between runs.

use std::path::{Path, PathBuf};

use engine::{Engine, Error, Result, history::History, text::Message};

use super::output;

/// A history, the messages that it holds, and where both are kept.
pub(super) struct Kept {
    pub(super) history: History,
    pub(super) messages: Vec<Message>,
    path: Option<PathBuf>,
    /// The file holds something else, which only something takes the place of.
    refused: bool,
}

impl Kept {
    /// What the session file at `path` holds; nothing without one, or if it does not fit, which is
    /// said.
    pub(super) fn open(engine: &Engine, path: Option<&Path>) -> Result<Self> {
        let mut kept = Self {
            history: History::new(engine)?,
            messages: Vec::new(),
            path: path.map(Path::to_owned),
            refused: false,
        };
        let Some(path) = path.filter(|path| path.exists()) else { return Ok(kept) };
        match kept.load(engine, path) {
            Ok(()) => output::note(format_args!(
                "session: {} tokens of {}",
                kept.history.tokens().len(),
                path.display()
            )),
            Err(error @ Error::Session { .. }) => {
                kept.refused = true;
                output::note(format_args!("{error}; it is replaced when this ends"));
            }
            Err(error) => return Err(error),
        }
        Ok(kept)
    }

    fn load(&mut self, engine: &Engine, path: &Path) -> Result<()> {
        let saved = engine.open_session(path)?;
        let messages = saved.conversation().to_vec();
        engine.load_session(saved, &mut self.history)?;
        self.messages = messages;
        Ok(())
    }

    /// Keeps all of it for the next time.
    pub(super) fn save(&self, engine: &Engine) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if self.refused && self.history.tokens().is_empty() {
            output::note(format_args!("session: {} is left as it was", path.display()));
            return Ok(());
        }
        let bytes = engine.save(path, &self.history, &self.messages)?;
        output::note(format_args!(
            "session: {} tokens, {} in {}",
            self.history.tokens().len(),
            output::size(bytes),
            path.display()
        ));
        Ok(())
    }
}

/// Refuses, before a model is loaded, a path that no session can be saved at.
pub(super) fn check(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    match folder.is_dir() {
        true if path.is_dir() => {
            Err(Error::Usage(format!("--session: {} is a directory", path.display())))
        }
        true => Ok(()),
        false => Err(Error::Usage(format!("--session: there is no {}", folder.display()))),
    }
}
