//! Steps of a sequence: inputs, recordings by shape, submissions.

use super::Engine;
use crate::{
    Result,
    gpu::{Recorder, Recording},
    kv::{CacheOptions, FEW, KvSpan, StepTaken, bus},
    model::{
        Observer,
        config::LayerKind,
        workspace::{Share, Step},
    },
    ngram::Pending,
    ops::{Tokens, top_logits},
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

/// A sequence and the tokens that it takes in a step.
pub(super) type Turn<'a> = (&'a mut Sequence, &'a [u32]);

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
            self.step(vec![(seq, &tokens[own.clone()])], rows, head)?;
            if after(self, seq, own)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Appends its tokens to each sequence: at most a chunk of one, or one token of several. `rows`
    /// are those of their n-grams.
    pub(super) fn step(
        &mut self,
        mut turns: Vec<Turn<'_>>,
        rows: Option<Pending>,
        head: bool,
    ) -> Result<()> {
        let shape = self.prepare(&mut turns, head)?;
        let members: Vec<_> = turns.iter().map(|(seq, _)| seq.member.number()).collect();
        let kept = match turns.as_mut_slice() {
            [(seq, _)] => seq.recordings.remove(&shape),
            _ => self.batches.take(&members, &shape),
        };
        let pieces = match kept {
            Some(pieces) => pieces,
            None => self.record(&turns, &shape, None)?,
        };
        self.run(&mut turns, (&shape, &pieces), rows, head)?;
        // Likely the same comes next, and the device is busy with this one.
        if shape.n() == members.len() as u32 && !self.timing.measures() {
            let short = pieces.iter().filter(|piece| self.pace.is_short(piece));
            short.for_each(|piece| self.gpu.encode_ahead(piece));
        }
        let [(seq, _)] = turns.as_mut_slice() else {
            self.batches.keep(members, shape, pieces);
            return Ok(());
        };
        if seq.recordings.len() >= KEPT_RECORDINGS {
            let full = |kept: &StepShape| kept.shares.first().is_some_and(|s| s.0 == self.ws.rows);
            let spans = |shape: &StepShape| shape.shares.first().map(|share| share.1);
            seq.recordings
                .retain(|kept, _| kept.n() == 1 || (full(kept) && spans(kept) == spans(&shape)));
        }
        seq.recordings.insert(shape, pieces);
        Ok(())
    }

    /// Submits a step piece by piece; the last one waits for the rows of the n-gram table.
    pub(super) fn run(
        &mut self,
        turns: &mut [Turn<'_>],
        (shape, pieces): (&StepShape, &[Recording]),
        rows: Option<Pending>,
        read: bool,
    ) -> Result<()> {
        let n = shape.n();
        let Some((last, before)) = pieces.split_last() else { return Ok(()) };
        turns.iter_mut().for_each(|(seq, _)| seq.broken = true);
        for piece in before {
            self.submit(piece, n)?;
        }
        if let (Some(rows), Some(space)) = (rows, &self.ws.ngram) {
            self.gpu.upload(&space.rows.buf, 0, bytemuck::cast_slice(&rows.wait()?))?;
        }
        self.submit(last, n)?;
        for ((seq, tokens), (n, span)) in turns.iter_mut().zip(&shape.shares) {
            seq.broken = false;
            let (first, dense) = (seq.tokens.len() as u32, shape.dense);
            let taken = StepTaken { first, n: *n, span: *span, dense, read };
            seq.state.count(taken, &mut self.counts);
            seq.tokens.extend_from_slice(tokens);
        }
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

    /// The same of the next token of each sequence.
    pub(super) fn request_each(&self, turns: &[Turn<'_>]) -> Result<Option<Pending>> {
        let (Some(ngram), Some(table)) = (self.config.ngram(), &self.ngram) else {
            return Ok(None);
        };
        let rows = |(seq, tokens): &Turn<'_>| ngram.hash.rows(&seq.tokens, tokens, 0..1);
        table.request(&turns.iter().flat_map(rows).collect::<Vec<_>>()).map(Some)
    }

    /// Makes room and writes the step's inputs.
    pub(super) fn prepare(&mut self, turns: &mut [Turn<'_>], head: bool) -> Result<StepShape> {
        let tokens = turns.iter().map(|(_, tokens)| *tokens).collect::<Vec<_>>().concat();
        self.gpu.upload(&self.ws.inputs.tokens, 0, bytemuck::cast_slice(&tokens))?;
        let dense = match &*turns {
            [(seq, tokens)] => self.is_dense(seq.tokens.len() as u32, tokens.len() as u32),
            _ => false,
        };
        let mut growing: Vec<_> =
            turns.iter_mut().map(|(seq, tokens)| (&mut **seq, tokens.len() as u32)).collect();
        Ok(StepShape { shares: self.prepare_places(&mut growing)?, dense, head })
    }

    /// Whether a step needs no selection. That of one token always has one, so that a single
    /// recording decodes at every position.
    fn is_dense(&self, first: u32, n: u32) -> bool {
        let shape = self.config.qwen4exp.as_ref().map(|c| c.indexer.shape());
        shape.is_some_and(|shape| n > 1 && shape.sees_all(first, n))
    }

    /// Makes room for so many more tokens of each sequence, and writes their positions and what
    /// follows from them.
    pub(super) fn prepare_places(
        &mut self,
        growing: &mut [(&mut Sequence, u32)],
    ) -> Result<Vec<(u32, Option<KvSpan>)>> {
        let index = self.config.qwen4exp.as_ref().map(|c| c.indexer.shape());
        let (mut positions, mut rotations, mut of_blocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut shares = Vec::with_capacity(growing.len());
        for (seq, n) in growing {
            let (first, n) = (seq.tokens.len() as u32, *n);
            let span = seq.state.reserve(&self.gpu, first, n, self.context, &self.placement)?;
            self.ws.stage(&self.gpu, &seq.state, (first, n), self.context)?;
            self.warn_of_host_memory();
            if let Some(shape) = index {
                // From the row of the sequence's first token on.
                of_blocks.resize(rotations.len(), [0.0; 2]);
                let (block, blocks) = (first / shape.ratio * shape.ratio, shape.touched(n));
                of_blocks.extend(self.rope.rows(block, shape.ratio, blocks));
            }
            positions.extend(first..first + n);
            rotations.extend(self.rope.rows(first, 1, n));
            shares.push((n, span));
        }
        let inputs = &self.ws.inputs;
        self.gpu.upload(&inputs.positions, 0, bytemuck::cast_slice(&positions))?;
        self.gpu.upload(&inputs.rope.buf, 0, bytemuck::cast_slice(&rotations))?;
        if let Some(space) = &self.ws.indexer {
            self.gpu.upload(&space.block_rope.buf, 0, bytemuck::cast_slice(&of_blocks))?;
        }
        Ok(shares)
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
        turns: &[Turn<'_>],
        shape: &StepShape,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Recording>> {
        let StepShape { dense, head, .. } = *shape;
        let (n, read) = (shape.n(), head || observer.is_some());
        let seqs: Vec<&Sequence> = turns.iter().map(|(seq, _)| &**seq).collect();
        let shares = shares(&seqs, shape);
        let step = Step { config: &self.config, ws: &self.ws, n, shares: &shares, dense, read };
        let pieces = self.model.pieces(&self.config);
        let record = |(i, piece): (usize, &Range<usize>)| {
            let mut rec = Recorder::new(&self.gpu);
            let observer = observer.as_mut().map(|o| &mut **o as &mut dyn Observer);
            self.model.record(&mut rec, &step, piece.clone(), observer)?;
            if head && i + 1 == pieces.len() {
                // The last row of the only sequence, or the one that each has.
                self.record_head(&mut rec, &seqs, n - seqs.len() as u32)?;
            }
            rec.finish()
        };
        pieces.iter().enumerate().map(record).collect()
    }

    /// The head over one row of the last step.
    pub(super) fn record_row(&self, seq: &Sequence, row: u32) -> Result<Recording> {
        let mut rec = Recorder::new(&self.gpu);
        self.record_head(&mut rec, &[seq], row)?;
        rec.finish()
    }

    /// The head over the rows from `row` on, one a sequence.
    fn record_head(&self, rec: &mut Recorder, seqs: &[&Sequence], row: u32) -> Result<()> {
        let mut hidden = self.model.hidden(&self.ws);
        if row > 0 {
            let bytes = u64::from(hidden.width) * 4;
            rec.copy(&hidden.buf, u64::from(row) * bytes, &self.last.buf, 0, bytes);
            hidden = &self.last;
        }
        let head = |rec: &mut _, logits, n| {
            self.model.record_head(rec, &self.config, &self.ws, hidden, logits, n)
        };
        match (seqs, &self.ws.logits) {
            (_, Some(logits)) if seqs.len() > 1 => {
                head(rec, logits, seqs.len() as u32)?;
                for (row, seq) in (0..).zip(seqs) {
                    let own = &seq.logits.buf;
                    rec.copy(&logits.buf, row * own.size(), own, 0, own.size());
                }
            }
            _ => seqs.iter().try_for_each(|seq| head(rec, &seq.logits, 1))?,
        }
        seqs.iter().try_for_each(|seq| top_logits::record(rec, &seq.logits, &seq.choice))
    }

    /// Steps of few tokens go out at once, without a wait, where they are known to be short; others in
    /// parts.
    pub(super) fn submit(&mut self, recording: &Recording, n: u32) -> Result<()> {
        if self.timing.submit(&self.gpu, recording, n)? {
            return Ok(());
        }
        match n <= FEW && self.pace.is_short(recording) {
            true => self.gpu.submit(recording),
            false => self.gpu.submit_paced(recording, &mut self.pace),
        }
    }
}

/// What a step of `shape` has of each sequence.
pub(super) fn shares<'a>(seqs: &[&'a Sequence], shape: &StepShape) -> Vec<Share<'a>> {
    let mut first = 0;
    (seqs.iter().zip(&shape.shares))
        .map(|(seq, &(n, span))| {
            let tokens = Tokens { first, n };
            first = tokens.end();
            Share { tokens, state: &seq.state, span }
        })
        .collect()
}
