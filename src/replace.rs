//! Files that take the place of others when they are whole.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result};

/// Has a file of `bytes` take the place of `target`, so that there is the one or the other at
/// every moment.
///
/// # Errors
/// [`Error::Io`] when it cannot be written, [`Error::Usage`] if `target` names no file.
pub fn replace(target: &Path, bytes: &[u8]) -> Result<()> {
    Replacement::begin(target, OpenOptions::new())?.finish_with(bytes)
}

/// A file that is written beside its target.
#[derive(Debug)]
pub(crate) struct Replacement {
    target: PathBuf,
    beside: PathBuf,
    /// Locked as long as it is written.
    file: File,
    is_whole: bool,
}

impl Replacement {
    /// Begins one for `target` that nobody else may read: what people have talked about is nobody
    /// else's business.
    pub(crate) fn private(target: &Path) -> Result<Self> {
        #[cfg_attr(not(unix), expect(unused_mut))]
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Self::begin(target, options)
    }

    /// Begins one for `target`, and removes what a process that was killed has left of others.
    fn begin(target: &Path, mut options: OpenOptions) -> Result<Self> {
        let io = |error| Error::io(target, error);
        let name = target.file_name().ok_or_else(|| {
            Error::Usage(format!("{} is not the name of a file", target.display()))
        })?;
        let hidden = |end: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(end);
            hidden
        };
        let folder = folder(target);
        remove_parts(folder, hidden(".").as_encoded_bytes()).map_err(io)?;
        options.write(true).create_new(true);
        loop {
            // Two that are written at once for one target are two files.
            static BEGUN: AtomicU64 = AtomicU64::new(0);
            let number = BEGUN.fetch_add(1, Ordering::Relaxed);
            let beside = folder.join(hidden(&format!(".{}-{number}.part", process::id())));
            let file = match options.open(&beside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened.map_err(io)?,
            };
            // Until it is locked, another one may take it for left behind and remove it. Where a
            // file system has no locks, nobody does.
            let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_taken && beside.exists() {
                return Ok(Self { target: target.into(), beside, file, is_whole: false });
            }
        }
    }

    /// The file to write to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Puts it in its target's place, once it is on the disk.
    pub(crate) fn finish(mut self) -> Result<()> {
        let io = |error| Error::io(&self.target, error);
        self.file.sync_all().map_err(io)?;
        fs::rename(&self.beside, &self.target).map_err(io)?;
        self.is_whole = true;
        // The name, too. Other systems have no such call for directories.
        #[cfg(unix)]
        File::open(folder(&self.target)).and_then(|folder| folder.sync_all()).map_err(io)?;
        Ok(())
    }

    /// The same, with `bytes` in it.
    pub(crate) fn finish_with(self, bytes: &[u8]) -> Result<()> {
        self.file().write_all(bytes).map_err(|e| Error::io(&self.target, e))?;
        self.finish()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Removes what processes that were killed have left in `folder`.
pub(crate) fn remove_abandoned(folder: &Path) -> io::Result<()> {
    remove_parts(folder, b".")
}

/// The same of those whose names begin with `prefix`.
fn remove_parts(folder: &Path, prefix: &[u8]) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !name.starts_with(prefix) || !name.ends_with(b".part") {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        // Who still writes it holds a lock.
        if file.try_lock().is_ok()
            && let Err(error) = fs::remove_file(entry.path())
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    Ok(())
}

fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("engine-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn two_of_one_target_do_not_mix() {
        let directory = directory("two-replacements");
        let target = directory.join("x.json");
        let [first, second] = [(); 2].map(|()| Replacement::private(&target).unwrap());
        first.file().write_all(b"the first, which is longer").unwrap();
        second.finish_with(b"the second").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"the second");
        first.finish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"the first, which is longer");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(directory).unwrap();
    }

    /// While some begin, others look for what was left behind.
    #[test]
    fn many_at_once_all_succeed() {
        let directory = directory("many-replacements");
        let target = directory.join("x.json");
        thread::scope(|scope| {
            for byte in 0..4 {
                let target = &target;
                scope.spawn(move || {
                    for _ in 0..100 {
                        replace(target, &[byte; 100]).unwrap();
                    }
                });
            }
        });
        let bytes = fs::read(&target).unwrap();
        assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(directory).unwrap();
    }
}
