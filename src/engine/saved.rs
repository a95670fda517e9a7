//! Histories to session files and back.

use std::path::Path;

use super::{Engine, EngineOptions};
use crate::{
    Error, Result,
    gguf::Gguf,
    history::{History, Point},
    model::{ModelConfig, config::LayerKind},
    sequence::{Checkpoint, Sequence},
    session::{Header, Identity, PIECE, Saved, Writer},
    text::Message,
};

/// What the state of a sequence depends on: the model, how keys and values are stored, how keys are
/// rotated.
pub(super) fn identity(gguf: &Gguf, config: &ModelConfig, options: &EngineOptions) -> Identity {
    // Numbers and names only: it cannot fail.
    let rope = serde_json::to_string(&config.rope).unwrap_or_default();
    Identity::default()
        .with("model", format_args!("{} {:032x}", config.arch.name(), gguf.fingerprint()))
        .with("type of keys", options.cache_k)
        .with("type of values", options.cache_v)
        .with("rotary embedding", rope)
}

impl Engine {
    /// Saves `history` at `path`, with the `conversation` that it holds. Until that is whole and on
    /// the disk, what was there before stays. Returns the bytes of the file.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written, [`Error::Context`] when a step of the sequence has
    /// failed, [`Error::Device`] when the device has.
    pub fn save(&self, path: &Path, history: &History, conversation: &[Message]) -> Result<u64> {
        let History { sequence, points } = history;
        if sequence.broken {
            return Err(Error::Context("an earlier step failed: there is nothing to save".into()));
        }
        let conversation = serde_json::to_vec(conversation)
            .map_err(|e| Error::Io { path: path.into(), source: e.into() })?;
        let mut parts = sequence.state.parts(sequence.tokens.len() as u32);
        parts.extend(points.iter().map(|p| p.checkpoint.state.part(p.position as u32)));
        let tokens: &[u8] = bytemuck::cast_slice(&sequence.tokens);
        let short = [("tokens", tokens), ("conversation", &conversation)];
        let sizes = short.iter().map(|(name, bytes)| ((*name).into(), bytes.len() as u64));
        let header = Header {
            identity: self.identity.clone(),
            checkpoints: points.positions().map(|position| position as u32).collect(),
            parts: sizes.chain(parts.iter().map(|p| (p.name.clone(), p.bytes()))).collect(),
        };
        let mut writer = Writer::begin(path, &header)?;
        for (_, bytes) in short {
            writer.part(|sink| sink(bytes))?;
        }
        let readback = self.gpu.readback(PIECE as u64)?;
        for part in &parts {
            writer.part(|sink| part.save(&self.gpu, &readback, sink))?;
        }
        writer.finish()
    }

    /// Whether sequences go back to any position, without checkpoints.
    pub(crate) fn goes_back_anywhere(&self) -> bool {
        let is_recurrent = |kind: &LayerKind| *kind == LayerKind::Recurrent;
        self.config.ngram().is_none() && !self.config.layers.iter().any(is_recurrent)
    }

    /// Opens the session file at `path`; its state is still on the disk.
    ///
    /// # Errors
    /// [`Error::Session`] for a file that is damaged, or of another model or setting;
    /// [`Error::Io`] when it cannot be read.
    pub fn open_session(&self, path: &Path) -> Result<Saved> {
        let saved = Saved::open(path, &self.identity, self.context)?;
        match saved.tokens().iter().find(|token| **token >= self.config.n_vocab) {
            Some(token) => Err(saved.refused(format!(
                "holds token {token}, where the vocabulary has {}",
                self.config.n_vocab
            ))),
            None => Ok(saved),
        }
    }

    /// Puts `history` where it was when `saved` was saved. After an error it is empty.
    ///
    /// # Errors
    /// [`Error::Session`] for a file that is damaged, [`Error::Io`] when it cannot be read,
    /// [`Error::Memory`] or [`Error::Device`] when memory is short.
    pub fn load_session(&self, mut saved: Saved, history: &mut History) -> Result<()> {
        history.clear(self);
        history.sequence.broken = true;
        let loaded = self.load_state(&mut saved, &mut history.sequence);
        history.sequence.broken = false;
        let points = loaded.and_then(|()| self.load_points(&mut saved, &history.sequence));
        match points.and_then(|points| saved.finish().map(|()| points)) {
            Ok(points) => {
                points.into_iter().for_each(|point| history.points.add(point, usize::MAX));
                Ok(())
            }
            Err(error) => {
                history.clear(self);
                Err(error)
            }
        }
    }

    fn load_state(&self, saved: &mut Saved, sequence: &mut Sequence) -> Result<()> {
        let n = saved.tokens().len() as u32;
        if n > 0 {
            sequence.state.reserve(&self.gpu, 0, n, self.context, &self.placement)?;
        }
        for part in sequence.state.parts(n) {
            saved.part(&part.name, part.bytes(), |fill| part.load(&self.gpu, fill))?;
        }
        sequence.tokens = saved.tokens().to_vec();
        Ok(())
    }

    fn load_points(
        &self,
        saved: &mut Saved,
        sequence: &Sequence,
    ) -> Result<Vec<Point<Checkpoint>>> {
        let mut points = Vec::new();
        for position in saved.checkpoints().to_vec() {
            let state = sequence.state.new_checkpoint(&self.gpu)?;
            let part = state.part(position);
            saved.part(&part.name, part.bytes(), |fill| part.load(&self.gpu, fill))?;
            let checkpoint = sequence.checkpoint(position as usize, state);
            points.push(Point {
                position: position as usize,
                bytes: checkpoint.bytes(),
                checkpoint,
            });
        }
        Ok(points)
    }
}
