//! Files that take the place of others when they are whole.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process,
};

use crate::{Error, Result};

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
    /// Begins one for `target`, and removes what a process that was killed has left of others.
    pub(crate) fn begin(target: &Path) -> Result<Self> {
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
        let beside = folder.join(hidden(&format!(".{}.part", process::id())));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // What people have talked about is nobody else's business.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&beside).map_err(io)?;
        // Where a file system has no locks, leftovers stay.
        let _ = file.try_lock();
        Ok(Self { target: target.into(), beside, file, is_whole: false })
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
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Removes what processes that were killed have left in `folder`.
pub(crate) fn remove_abandoned(folder: &Path) -> std::io::Result<()> {
    remove_parts(folder, b".")
}

/// The same of those whose names begin with `prefix`.
fn remove_parts(folder: &Path, prefix: &[u8]) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_part = name.starts_with(prefix) && name.ends_with(b".part");
        // Who still writes it holds a lock.
        let abandoned = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if is_part && abandoned() {
            fs::remove_file(entry.path())?;
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
