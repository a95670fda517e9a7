//! The session files of `--session-dir`: which there are, which starts a prompt, and how much room
//! they take.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{answer::random_id, error::ApiError};
use crate::{
    Engine, Error, Result,
    history::{self, History},
    replace,
};

/// The session files of a directory.
pub(super) struct Store {
    folder: PathBuf,
    /// Bytes that those may take that the server has saved by itself.
    space: u64,
    entries: Vec<Entry>,
}

/// A file that can be loaded.
struct Entry {
    name: String,
    tokens: Vec<u32>,
    checkpoints: Vec<usize>,
}

/// What the names end with of files that the server has saved by itself.
const AUTOMATIC: &str = ".auto";

/// The directory beside them that is for the texts of conversations.
pub(super) const CONVERSATIONS: &str = "conversations";

/// A file is not read for a smaller share of its tokens.
const SHARE: usize = 4;

impl Store {
    /// Those in `folder` that `engine` can load; others stay unused.
    pub(super) fn open(folder: &Path, space: u64, engine: &Engine) -> Result<Self> {
        let io = |error| Error::io(folder, error);
        fs::create_dir_all(folder).map_err(io)?;
        replace::remove_abandoned(folder).map_err(io)?;
        let mut store = Self { folder: folder.into(), space, entries: Vec::new() };
        for file in fs::read_dir(folder).map_err(io)?.flatten() {
            if let Ok(name) = file.file_name().into_string()
                && is_file(&name)
                && let Err(error @ Error::Session { .. }) = store.add(engine, &name)
            {
                tracing::info!("{error}: it is not used");
            }
        }
        Ok(store)
    }

    /// The file that has the most of `prompt`, and how many tokens of it need not be processed.
    pub(super) fn best(&self, engine: &Engine, prompt: &[u32]) -> Option<(String, usize)> {
        let reusable = |entry: &Entry| {
            let positions = entry.checkpoints.iter().copied();
            history::reusable(&entry.tokens, positions, engine.goes_back_anywhere(), prompt)
        };
        let known = self.entries.iter().map(|entry| (entry, reusable(entry)));
        let worth = known.filter(|(entry, tokens)| tokens * SHARE >= entry.tokens.len());
        let (entry, tokens) = worth.max_by_key(|(_, tokens)| *tokens)?;
        (tokens > 0).then(|| (entry.name.clone(), tokens))
    }

    /// A name that no file has.
    pub(super) fn unused_name() -> String {
        automatic(&random_id(""))
    }

    /// Loads the file `name`; returns its bytes.
    pub(super) fn load(&mut self, engine: &Engine, name: &str, to: &mut History) -> Result<u64> {
        let path = self.folder.join(name);
        let loaded = engine.open_session(&path).and_then(|saved| {
            let bytes = saved.bytes();
            engine.load_session(saved, to).map(|()| bytes)
        });
        match &loaded {
            // When it was used last shows in its time.
            Ok(_) => drop(
                fs::File::options()
                    .append(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(SystemTime::now())),
            ),
            Err(_) => self.entries.retain(|entry| entry.name != name),
        }
        loaded
    }

    /// Saves `history` as `name`; returns the bytes of the file. The file `next` does not make room
    /// for it.
    pub(super) fn save(
        &mut self,
        engine: &Engine,
        name: &str,
        history: &History,
        next: Option<&str>,
    ) -> Result<u64> {
        let bytes = engine.save(&self.folder.join(name), history, &[])?;
        self.add(engine, name)?;
        self.make_room(&[Some(name), next]);
        Ok(bytes)
    }

    /// Removes the file `name`, if it is there.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.entries.retain(|entry| entry.name != name);
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(path, error))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, engine: &Engine, name: &str) -> Result<()> {
        let saved = engine.open_session(&self.folder.join(name))?;
        let checkpoints = saved.checkpoints().iter().map(|position| *position as usize).collect();
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(Entry {
            name: name.into(),
            tokens: saved.tokens().to_vec(),
            checkpoints,
        });
        Ok(())
    }

    /// Removes the files unused for the longest time that do not fit, but for `spared`.
    fn make_room(&mut self, spared: &[Option<&str>]) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<_> = (files.flatten())
            .filter_map(|file| {
                let name = file.file_name().into_string().ok()?;
                let about = file.metadata().ok().filter(|_| is_automatic(&name))?;
                Some((about.modified().ok()?, about.len(), name))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, name) in files {
            if total <= self.space {
                break;
            }
            if !spared.contains(&Some(name.as_str())) && self.remove(&name).is_ok() {
                tracing::info!("the session {name} has gone: --session-space is used up");
                total -= bytes;
            }
        }
    }
}

/// The file that the server saves the conversation `name` in.
pub(super) fn automatic(name: &str) -> String {
    format!("{name}{AUTOMATIC}")
}

/// Whether the file `name` is one that the server has saved by itself.
pub(super) fn is_automatic(name: &str) -> bool {
    name.ends_with(AUTOMATIC)
}

/// Refuses a name for a session file that the field `field` gives.
pub(super) fn check_file(field: &str, name: &str) -> std::result::Result<(), ApiError> {
    // Some systems take capitals for the same.
    if name.eq_ignore_ascii_case(CONVERSATIONS) {
        let fault = format_args!("is {name}, which is the directory of conversations");
        return Err(ApiError::field(field, fault));
    }
    check_name(field, name)
}

/// Refuses a name that the field `field` gives.
pub(super) fn check_name(field: &str, name: &str) -> std::result::Result<(), ApiError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(ApiError::field(
            field,
            "is not a name: 1 to 100 letters, digits, - _ and ., the last not at an end",
        )),
    }
}

/// Whether the file `name` may be a session.
fn is_file(name: &str) -> bool {
    is_name(name.strip_suffix(AUTOMATIC).unwrap_or(name))
}

/// Whether `name` is one for a file in the directory: nothing of a path, nothing hidden, nothing
/// that a system reads otherwise.
fn is_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=100).contains(&name.len())
        && name.chars().all(known)
        && !name.starts_with('.')
        && !name.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::{automatic, check_file, is_file, is_name};

    #[test]
    fn names_are_no_paths() {
        for name in ["a", "x.session", "auto-0123", "A_b-c.9"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(101);
        for name in [
            "", ".", "..", "../a", "a/b", "a\\b", "/a", ".a", "a.", "a b", "a\0", "é", "c:a", &long,
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_was_saved_under_a_name_is_found_again() {
        for name in ["a", &"a".repeat(100)] {
            assert!(is_name(name) && is_file(name) && is_file(&automatic(name)), "{name}");
        }
        assert!(!is_file(&"a".repeat(101)) && !is_file(".auto"));
    }

    #[test]
    fn the_directory_of_conversations_is_no_session() {
        assert!(check_file("filename", "conversation").is_ok());
        for name in ["conversations", "Conversations", "..", ""] {
            assert!(check_file("filename", name).is_err(), "{name}");
        }
    }
}
