//! A slot: one sequence, what is kept of it between requests, and the request that runs on it.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    logprobs,
    queue::{Chosen, Event, Job, Progress, Summary},
    reuse::{self, CheckpointOptions, Point, Points},
};
use crate::{
    Engine, Error, Result,
    engine::{Outcome, Wanted},
    generate::{FinishReason, Generation, Next},
    sample::Sampler,
    sequence::{Checkpoint, Sequence},
    text::TokenType,
};

/// One sequence and its request, if it has one.
#[derive(Default)]
pub(super) struct Slot {
    /// Made when it is first needed, and anew after a failure.
    sequence: Option<Sequence>,
    points: Points<Checkpoint>,
    run: Option<Run>,
    /// Number of the last request that it took.
    pub(super) last: u64,
}

/// A request on its way.
struct Run {
    choice: usize,
    events: UnboundedSender<(usize, Event)>,
    generation: Generation,
    logprobs: Option<usize>,
    /// Where to take checkpoints, ascending.
    cuts: Vec<usize>,
    cached: usize,
    started: Instant,
    /// Until the first token was chosen.
    prompt_time: Option<Duration>,
    /// Time that its turns have had.
    had: Duration,
}

/// What a request needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// A portion of its prompt.
    Prompt,
    /// Its next token.
    Token,
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens chosen.
    pub(super) chosen: usize,
    /// How long it took.
    pub(super) time: Duration,
    /// The request has failed.
    pub(super) failed: bool,
}

impl Slot {
    /// Whether it can take a request.
    pub(super) fn is_free(&self) -> bool {
        self.run.is_none()
    }

    /// Time that the running request has had.
    pub(super) fn had(&self) -> Option<Duration> {
        self.run.as_ref().map(|run| run.had)
    }

    /// The tokens it holds.
    pub(super) fn held(&self) -> &[u32] {
        self.sequence.as_ref().map_or(&[], Sequence::tokens)
    }

    /// The checkpoints it keeps.
    pub(super) fn points(&mut self) -> &mut Points<Checkpoint> {
        &mut self.points
    }

    /// Bytes of the checkpoints it keeps.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.points.bytes()
    }

    /// How many tokens of `prompt` it would not have to process.
    pub(super) fn reusable(&self, prompt: &[u32]) -> usize {
        let Some(sequence) = &self.sequence else { return 0 };
        let common = reuse::common(sequence.tokens(), prompt);
        if common == sequence.tokens().len() && common < prompt.len() {
            return common;
        }
        // The last token is always processed: its logits are not kept.
        let most = common.min(prompt.len().saturating_sub(1));
        if sequence.checkpoint_at(most).is_some() {
            return most;
        }
        self.points.best(common, prompt.len()).map_or(0, |point| point.position)
    }

    /// Takes `job`, which is given as much of the device's time as `had` says it had already.
    /// What went wrong is told to the client.
    pub(super) fn start(
        &mut self,
        engine: &Engine,
        job: Job,
        had: Duration,
        options: &CheckpointOptions,
    ) -> Work {
        let (choice, events) = (job.choice, job.events.clone());
        match self.prepare(engine, job, had, options) {
            Ok(run) => {
                self.run = Some(run);
                Work::default()
            }
            Err(error) => {
                let _ = events.send((choice, Event::Failed(error)));
                self.forget();
                Work { failed: true, ..Work::default() }
            }
        }
    }

    fn prepare(
        &mut self,
        engine: &Engine,
        job: Job,
        had: Duration,
        options: &CheckpointOptions,
    ) -> Result<Run> {
        let wanted = if job.reuse { self.reusable(&job.prompt) } else { 0 };
        let (held, common) = (self.held().len(), reuse::common(self.held(), &job.prompt));
        let sequence = self.rewind(engine, wanted, common)?;
        let cached = sequence.tokens().len();
        if cached < held {
            let prompt = job.prompt.len();
            tracing::info!(
                "of {held} tokens held, the first {common} start the prompt of {prompt}; it goes on \
                 after {cached}"
            );
        }
        let cuts = if sequence.checkpoint_at(0).is_some() {
            Vec::new()
        } else {
            let vocab = engine.tokenizer().vocab();
            let is_control = |token| vocab.token_type(token) == Some(TokenType::Control);
            reuse::cuts(&job.prompt, cached, options.every, is_control)
        };
        let sampler = Sampler::new(job.sampling)?;
        let context = engine.context() as usize;
        let run = Run {
            choice: job.choice,
            events: job.events,
            generation: Generation::new(sampler, job.options, job.prompt, cached, context)?
                .constrained(job.constraint),
            logprobs: job.logprobs,
            cuts,
            cached,
            started: Instant::now(),
            prompt_time: None,
            had,
        };
        run.report(cached);
        Ok(run)
    }

    /// Takes the sequence back to its first `wanted` tokens; up to `common` they stay as they are.
    fn rewind(&mut self, engine: &Engine, wanted: usize, common: usize) -> Result<&Sequence> {
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            none => none.insert(engine.new_sequence()?),
        };
        if wanted == sequence.tokens().len() {
            return Ok(sequence);
        }
        if let Some(checkpoint) = sequence.checkpoint_at(wanted) {
            engine.restore(sequence, &checkpoint)?;
        } else if let Some(point) = self.points.best(wanted, wanted + 1).filter(|_| wanted > 0) {
            engine.restore(sequence, &point.checkpoint)?;
            self.points.cut(common);
        } else {
            engine.clear(sequence);
            self.points.cut(0);
        }
        Ok(sequence)
    }

    /// Ends the request if its client has gone; true if so.
    pub(super) fn release(&mut self) -> bool {
        self.run.take_if(|run| run.events.is_closed()).is_some()
    }

    /// What the request needs next, if there is one.
    pub(super) fn needs(&self) -> Option<Needs> {
        self.run.as_ref().map(|run| match run.generation.next() {
            Next::Decode(_) | Next::Choose => Needs::Token,
            Next::Prefill(_) | Next::Done(_) => Needs::Prompt,
        })
    }

    /// Does a portion of the prompt: steps until the device is `wanted` by others.
    pub(super) fn prefill(
        &mut self,
        engine: &mut Engine,
        options: &CheckpointOptions,
        wanted: &dyn Fn() -> bool,
    ) -> Work {
        let started = Instant::now();
        let (Some(run), Some(sequence)) = (&mut self.run, &mut self.sequence) else {
            return Work::default();
        };
        match run.prefill(engine, sequence, &mut self.points, options, wanted) {
            Ok(prompt) => {
                let time = started.elapsed();
                run.had += time;
                if run.finish() {
                    self.run = None;
                }
                Work { prompt, time, ..Work::default() }
            }
            Err(error) => {
                self.end(error);
                Work { failed: true, ..Work::default() }
            }
        }
    }

    /// The sequence and the token that it lacks, unless the first is still to be chosen.
    pub(super) fn token(&mut self) -> Option<(&mut Sequence, u32)> {
        let Next::Decode(token) = self.run.as_ref()?.generation.next() else { return None };
        Some((self.sequence.as_mut()?, token))
    }

    /// Appends the token after a step with others has failed with `error`, if that has left the
    /// sequence whole.
    pub(super) fn decode_alone(&mut self, engine: &mut Engine, error: &Error) {
        let Some((sequence, token)) = self.token() else { return };
        if sequence.is_broken() {
            self.fail(error);
        } else if let Err(error) = engine.decode(sequence, token) {
            self.end(error);
        }
    }

    /// The sequence has its token.
    pub(super) fn appended(&mut self) {
        if let Some(run) = &mut self.run
            && let Next::Decode(_) = run.generation.next()
        {
            run.generation.appended(1);
        }
    }

    /// What to read to choose a token.
    pub(super) fn wanted(&self) -> Option<(&Sequence, Wanted)> {
        let (run, sequence) = (self.run.as_ref()?, self.sequence.as_ref()?);
        let greedy = run.logprobs.is_none() && run.generation.is_greedy();
        Some((sequence, if greedy { Wanted::Argmax } else { Wanted::Logits }))
    }

    /// Chooses a token by what was read; true unless the request has failed.
    pub(super) fn choose(&mut self, engine: &mut Engine, outcome: Outcome) -> bool {
        let (Some(run), Some(sequence)) = (&mut self.run, &self.sequence) else { return false };
        match run.choose(engine, sequence, outcome) {
            Ok(()) => {
                if run.finish() {
                    self.run = None;
                }
                true
            }
            Err(error) => {
                self.end(error);
                false
            }
        }
    }

    /// Adds to the time that the request has had.
    pub(super) fn charge(&mut self, time: Duration) {
        if let Some(run) = &mut self.run {
            run.had += time;
        }
    }

    /// Ends the request because of a failure that is not its own.
    pub(super) fn fail(&mut self, fault: &Error) {
        self.end(Error::Device(fault.to_string()));
    }

    fn end(&mut self, error: Error) {
        if let Some(run) = &self.run {
            run.send(Event::Failed(error));
        }
        self.forget();
    }

    /// After a failure nothing of the sequence can be trusted.
    fn forget(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }
}

impl Run {
    /// Returns how many tokens of the prompt were processed.
    fn prefill(
        &mut self,
        engine: &mut Engine,
        sequence: &mut Sequence,
        points: &mut Points<Checkpoint>,
        options: &CheckpointOptions,
        wanted: &dyn Fn() -> bool,
    ) -> Result<usize> {
        let Next::Prefill(tokens) = self.generation.next() else { return Ok(0) };
        let held = sequence.tokens().len();
        let to_cut = self.cuts.first().map_or(tokens.len(), |cut| cut - held);
        let mut after_step = |done| {
            self.report(held + done);
            match self.events.is_closed() || wanted() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        engine.prefill(sequence, &tokens[..to_cut], &mut after_step)?;
        let processed = sequence.tokens().len() - held;
        self.generation.appended(processed);
        if self.cuts.first() == Some(&sequence.tokens().len()) {
            self.cuts.remove(0);
            checkpoint(engine, sequence, points, options);
        }
        if self.generation.next() == Next::Done(FinishReason::Length) {
            // Nothing is to be generated: reading shows whether the device has failed.
            engine.logits(sequence)?;
        }
        Ok(processed)
    }

    fn choose(&mut self, engine: &mut Engine, sequence: &Sequence, outcome: Outcome) -> Result<()> {
        let generation = &mut self.generation;
        let (id, logprobs) = match outcome {
            Outcome::Logits(logits) => {
                let id = generation.choose(&logits)?;
                (id, self.logprobs.map(|top| logprobs::of(&logits, id, top)))
            }
            Outcome::Argmax(id) => match id? {
                id if generation.allows(id)? => (id, None),
                _ => (generation.choose(&engine.logits(sequence)?)?, None),
            },
        };
        self.prompt_time.get_or_insert_with(|| self.started.elapsed());
        let text = self.generation.push(id, engine.tokenizer());
        self.send(Event::Token(Chosen { id, text, logprobs }));
        Ok(())
    }

    /// Tells the client how far the prompt is.
    fn report(&self, processed: usize) {
        self.send(Event::Prompt(Progress {
            total: self.generation.prompt_len(),
            cached: self.cached,
            processed,
            time: self.started.elapsed(),
        }));
    }

    /// Tells the client if this was all, and whether it was.
    fn finish(&self) -> bool {
        let Next::Done(finish) = self.generation.next() else { return false };
        let elapsed = self.started.elapsed();
        let prompt_time = self.prompt_time.unwrap_or(elapsed);
        self.send(Event::Done(Summary {
            finish,
            stopped_by: self.generation.stopped_by().map(str::to_owned),
            prompt: self.generation.prompt_len(),
            cached: self.cached,
            generated: self.generation.generated().len(),
            prompt_time,
            decode_time: elapsed - prompt_time,
        }));
        true
    }

    /// Whether the client is still there shows at the next turn.
    fn send(&self, event: Event) {
        let _ = self.events.send((self.choice, event));
    }
}

/// Keeps the sequence's present point, if there is memory for it: it only saves time.
fn checkpoint(
    engine: &Engine,
    sequence: &Sequence,
    points: &mut Points<Checkpoint>,
    options: &CheckpointOptions,
) {
    match engine.checkpoint(sequence) {
        Ok(checkpoint) => {
            let (position, bytes) = (checkpoint.position(), checkpoint.bytes());
            points.add(Point { position, bytes, checkpoint }, options.count);
        }
        Err(error) => tracing::warn!("no checkpoint is kept: {error}"),
    }
}
