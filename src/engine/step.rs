//! Steps of a sequence: inputs, recordings by shape, submissions.

use super::Engine;
use crate::{
    Result,
    gpu::{Recorder, Recording},
    kv::{CacheOptions, FEW, KvSpan, StepTaken, bus},
    model::{Observer, config::LayerKind, workspace::Step},
    ngram::Pending,
    ops::argmax,
    sequence::{Sequence, StepShape},
};
use std::ops::{ControlFlow, Range};

/// Recordings a sequence keeps besides the one-token step: the full chunk and a remainder or two.
const KEPT_RECORDINGS: usize = 4;

/// Which steps end with the logits of their last token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    AtTheEnd,
    OfEveryStep,
}

/// Is given the tokens of a step that is done.
pub(super) type AfterStep<'a> =
    dyn FnMut(&mut Engine, &Sequence, Range<usize>) -> Result<ControlFlow<()>> + 'a;

impl Engine {
    /// Takes `tokens` in steps of `size`. The rows of a step's n-grams are read while the step
    /// before it runs. `after` is told which tokens a step had, and may break off.
    pub(super) fn steps(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        size: u32,
        head: Head,
        after: &mut AfterStep<'_>,
    ) -> Result<()> {
        let (start, end) = (seq.tokens.len(), tokens.len());
        let part = |first: usize| first.min(end)..first.saturating_add(size as usize).min(end);
        let mut ahead = self.request_rows(&seq.tokens, tokens, part(0))?;
        for first in (0..end).step_by(size as usize) {
            let (rows, own) = (ahead, part(first));
            ahead = self.request_rows(&seq.tokens[..start], tokens, part(own.end))?;
            let head = head == Head::OfEveryStep || own.end == end;
            self.step(seq, &tokens[own.clone()], rows, head)?;
            if after(self, seq, own)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Appends `tokens`, at most a chunk, of whose n-grams `rows` are.
    pub(super) fn step(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        rows: Option<Pending>,
        head: bool,
    ) -> Result<()> {
        let shape = self.prepare(seq, tokens, head)?;
        let pieces = match seq.recordings.remove(&shape) {
            Some(pieces) => pieces,
            None => self.record(seq, &shape, None)?,
        };
        self.run(seq, tokens, (&shape, &pieces), rows, head)?;
        if seq.recordings.len() >= KEPT_RECORDINGS {
            let (full, span) = (self.ws.rows, shape.span);
            seq.recordings.retain(|kept, _| kept.n == 1 || (kept.n == full && kept.span == span));
        }
        seq.recordings.insert(shape, pieces);
        Ok(())
    }

    /// Submits a step piece by piece; the last one waits for the rows of the n-gram table.
    pub(super) fn run(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        (shape, pieces): (&StepShape, &[Recording]),
        rows: Option<Pending>,
        read: bool,
    ) -> Result<()> {
        let n = tokens.len() as u32;
        let Some((last, before)) = pieces.split_last() else { return Ok(()) };
        seq.broken = true;
        for piece in before {
            self.submit(piece, n)?;
        }
        if let (Some(rows), Some(space)) = (rows, &self.ws.ngram) {
            self.gpu.upload(&space.rows.buf, 0, bytemuck::cast_slice(&rows.wait()?))?;
        }
        self.submit(last, n)?;
        seq.broken = false;
        let (first, StepShape { span, dense, .. }) = (seq.tokens.len() as u32, *shape);
        seq.state.count(StepTaken { first, n, span, dense, read }, &mut self.counts);
        seq.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Starts reading the rows of the n-gram table that `part` of `tokens` want; `tokens` follow
    /// `past` in their sequence.
    pub(super) fn request_rows(
        &self,
        past: &[u32],
        tokens: &[u32],
        part: Range<usize>,
    ) -> Result<Option<Pending>> {
        match (self.config.ngram(), &self.ngram) {
            (Some(ngram), Some(table)) => {
                table.request(&ngram.hash.rows(past, tokens, part)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Makes room and writes the step's inputs.
    pub(super) fn prepare(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        head: bool,
    ) -> Result<StepShape> {
        self.gpu.upload(&self.ws.inputs.tokens, 0, bytemuck::cast_slice(tokens))?;
        let (first, n) = (seq.tokens.len() as u32, tokens.len() as u32);
        let span = self.prepare_places(seq, n)?;
        Ok(StepShape { n, span, dense: self.is_dense(first, n), head })
    }

    /// Whether a step needs no selection. That of one token always has one, so that a single
    /// recording decodes at every position.
    fn is_dense(&self, first: u32, n: u32) -> bool {
        let shape = self.config.qwen4exp.as_ref().map(|c| c.indexer.shape());
        shape.is_some_and(|shape| n > 1 && shape.sees_all(first, n))
    }

    /// Makes room for `n` more tokens, and writes their positions and what follows from them.
    pub(super) fn prepare_places(&mut self, seq: &mut Sequence, n: u32) -> Result<Option<KvSpan>> {
        let first = seq.tokens.len() as u32;
        let span = seq.state.reserve(&self.gpu, first, n, self.context, &self.placement)?;
        self.ws.stage(&self.gpu, &seq.state, (first, n), self.context)?;
        self.warn_of_host_memory();
        let inputs = &self.ws.inputs;
        let positions: Vec<u32> = (first..first + n).collect();
        self.gpu.upload(&inputs.positions, 0, bytemuck::cast_slice(&positions))?;
        self.rope.write(&self.gpu, first, n, &inputs.rope)?;
        if let (Some(space), Some(c)) = (&self.ws.indexer, &self.config.qwen4exp) {
            let shape = c.indexer.shape();
            let (block, blocks) = (first / shape.ratio * shape.ratio, shape.touched(n));
            let table = &space.block_rope;
            self.rope.write_every(&self.gpu, block, shape.ratio, blocks, table)?;
        }
        Ok(span)
    }

    /// Says what it costs that keys and values are in host memory, if that was not planned.
    fn warn_of_host_memory(&mut self) {
        if !self.warned && self.gpu.memory().host.kv > 0 {
            self.warn_of_tokens_on_host(self.context);
        }
    }

    /// Says what it costs that keys and values of so many tokens of a full context will be in host
    /// memory.
    pub(super) fn warn_of_tokens_on_host(&mut self, tokens: u32) {
        self.warned = true;
        let (config, CacheOptions { k, v, .. }) = (&self.config, self.cache);
        let values = u64::from(config.n_kv) * u64::from(config.head_dim);
        let dense = config.layers.iter().filter(|kind| **kind == LayerKind::Attention).count();
        let token = dense as u64 * (k.bytes(values) + v.bytes(values));
        let kind = self.gpu.adapter().kind;
        if let Some(text) = bus::warning(kind, token, tokens, self.context) {
            tracing::warn!("{text}");
        }
    }

    pub(super) fn record(
        &self,
        seq: &Sequence,
        shape: &StepShape,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Recording>> {
        let StepShape { n, span, dense, head } = *shape;
        let read = head || observer.is_some();
        let step = Step { config: &self.config, ws: &self.ws, n, span, dense, read };
        let pieces = self.model.pieces(&self.config);
        let record = |(i, piece): (usize, &Range<usize>)| {
            let mut rec = Recorder::new(&self.gpu);
            let observer = observer.as_mut().map(|o| &mut **o as &mut dyn Observer);
            self.model.record(&mut rec, &step, &seq.state, piece.clone(), observer)?;
            if head && i + 1 == pieces.len() {
                self.record_head(&mut rec, seq, n - 1)?;
            }
            rec.finish()
        };
        pieces.iter().enumerate().map(record).collect()
    }

    /// The head over one row of the last step.
    pub(super) fn record_row(&self, seq: &Sequence, row: u32) -> Result<Recording> {
        let mut rec = Recorder::new(&self.gpu);
        self.record_head(&mut rec, seq, row)?;
        rec.finish()
    }

    fn record_head(&self, rec: &mut Recorder, seq: &Sequence, row: u32) -> Result<()> {
        let mut hidden = self.model.hidden(&self.ws);
        if row > 0 {
            let bytes = u64::from(hidden.width) * 4;
            rec.copy(&hidden.buf, u64::from(row) * bytes, &self.last.buf, 0, bytes);
            hidden = &self.last;
        }
        self.model.record_head(rec, &self.config, &self.ws, hidden, &seq.logits)?;
        argmax::record(rec, &seq.logits, &seq.choice)
    }

    /// Steps of few tokens are short and go out at once, without a wait; others in parts.
    pub(super) fn submit(&mut self, recording: &Recording, n: u32) -> Result<()> {
        if self.timing.submit(&self.gpu, recording, n)? {
            return Ok(());
        }
        match n <= FEW {
            true => self.gpu.submit(recording),
            false => self.gpu.submit_paced(recording, &mut self.pace),
        }
    }
}
