//! Reading a session file.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::{
    Identity,
    header::{Header, fill},
    refused,
};
use crate::{Error, Result, text::Message};

/// Most bytes of a conversation's text.
const CONVERSATION: u64 = 256 << 20;

/// An opened session file: what it says, its tokens and its conversation; the state is still on
/// the disk.
#[derive(Debug)]
pub struct Saved {
    path: PathBuf,
    /// At the first part that is not read yet.
    file: File,
    bytes: u64,
    header: Header,
    /// Parts that are read.
    read: usize,
    tokens: Vec<u32>,
    conversation: Vec<Message>,
}

impl Saved {
    /// Opens the file at `path`, if it was saved with `identity` and has at most `context` tokens.
    pub(crate) fn open(path: &Path, identity: &Identity, context: u32) -> Result<Self> {
        let io = |error| Error::io(path, error);
        // Asked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(refused(path, "is not a file"));
        }
        let mut file = File::open(path).map_err(io)?;
        let (header, length) = Header::read(path, &mut file)?;
        if let Some(difference) = identity.difference(&header.identity) {
            return Err(refused(path, difference));
        }
        let bytes = file.metadata().map_err(io)?.len();
        if header.file_bytes(length) != Some(bytes) {
            let belong = header.file_bytes(length).unwrap_or(u64::MAX);
            return Err(refused(path, format!("has {bytes} bytes, where {belong} belong")));
        }
        let (tokens, conversation) = (Vec::new(), Vec::new());
        let path = path.to_owned();
        let mut saved = Self { path, file, bytes, header, read: 0, tokens, conversation };
        let tokens = saved.whole("tokens", u64::from(context) * 4, |bytes| {
            format!("holds {} tokens, where the context holds {context}", bytes / 4)
        })?;
        if !tokens.len().is_multiple_of(4) {
            return Err(saved.refused("has a part of a token"));
        }
        saved.tokens = bytemuck::pod_collect_to_vec(&tokens);
        let positions = &saved.header.checkpoints;
        let within = positions.last().is_none_or(|last| *last as usize <= saved.tokens.len());
        if !within || !positions.is_sorted_by(|a, b| a < b) {
            return Err(saved.refused("has checkpoints that are not of its tokens"));
        }
        let text = saved.whole("conversation", CONVERSATION, |bytes| {
            format!("has a conversation of {bytes} bytes")
        })?;
        saved.conversation = serde_json::from_slice(&text)
            .map_err(|e| saved.refused(format!("has a wrong conversation: {e}")))?;
        Ok(saved)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions of its checkpoints, ascending.
    pub fn checkpoints(&self) -> &[u32] {
        &self.header.checkpoints
    }

    /// What the front end has kept with it.
    pub fn conversation(&self) -> &[Message] {
        &self.conversation
    }

    /// The next part, which is short: all of it.
    fn whole(
        &mut self,
        name: &str,
        most: u64,
        too_long: impl FnOnce(u64) -> String,
    ) -> Result<Vec<u8>> {
        let bytes = self.expect(name)?;
        if bytes > most {
            return Err(self.refused(too_long(bytes)));
        }
        let mut all = vec![0; bytes as usize];
        fill(&self.path, &mut self.file, &mut all)?;
        self.check(xxh3_64(&all))?;
        Ok(all)
    }

    /// Reads the next part, `bytes` of `name`, which `load` asks for piece by piece. What it was
    /// given is true only if this succeeds.
    pub(crate) fn part(
        &mut self,
        name: &str,
        bytes: u64,
        load: impl FnOnce(&mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let there = self.expect(name)?;
        if there != bytes {
            let reason = format!("has {there} bytes of {name}, where {bytes} belong");
            return Err(self.refused(reason));
        }
        let mut hash = Xxh3Default::new();
        load(&mut |piece| {
            fill(&self.path, &mut self.file, piece)?;
            hash.update(piece);
            Ok(())
        })?;
        self.check(hash.digest())
    }

    /// All parts are read, if the file has no others.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.header.parts.get(self.read) {
            Some((name, _)) => Err(self.refused(format!("has {name}, which do not belong there"))),
            None => Ok(()),
        }
    }

    /// Bytes of the next part, if it is called `name`.
    fn expect(&self, name: &str) -> Result<u64> {
        match self.header.parts.get(self.read) {
            Some((there, bytes)) if there == name => Ok(*bytes),
            Some((there, _)) => Err(self.refused(format!("has {there}, where {name} belong"))),
            None => Err(self.refused(format!("lacks {name}"))),
        }
    }

    /// The part has been read, and this is its checksum.
    fn check(&mut self, sum: u64) -> Result<()> {
        let mut stored = [0; 8];
        fill(&self.path, &mut self.file, &mut stored)?;
        if u64::from_le_bytes(stored) != sum {
            let name = self.header.parts.get(self.read).map_or("", |(name, _)| name);
            let reason = format!("is damaged: {name} do not match their checksum");
            return Err(self.refused(reason));
        }
        self.read += 1;
        Ok(())
    }

    pub(crate) fn refused(&self, reason: impl Into<String>) -> Error {
        refused(&self.path, reason)
    }
}
