//! A slot: one sequence, what is kept of it between requests, and the request that runs on it.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    logprobs,
    queue::{Chosen, Event, Job, Moved, Progress, Summary},
    store::Store,
};
use crate::{
    Engine, Error, Result,
    engine::{Outcome, Wanted},
    generate::{FinishReason, Generation, Next},
    history::{CheckpointOptions, History, Points},
    sample::{Sampler, argmax},
    sequence::{Checkpoint, Sequence},
};

/// Fewer tokens are processed again as fast as they are read from a file.
const WORTH: usize = 512;

/// One sequence and its request, if it has one.
#[derive(Default)]
pub(super) struct Slot {
    /// Made when it is first needed, and anew after a failure.
    history: Option<History>,
    /// Name of the file that the history is kept in.
    session: Option<String>,
    /// The file has all of it.
    is_saved: bool,
    /// Saving it has failed.
    is_refused: bool,
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
        self.history.as_ref().map_or(&[], History::tokens)
    }

    /// The checkpoints it keeps.
    pub(super) fn points(&mut self) -> Option<&mut Points<Checkpoint>> {
        self.history.as_mut().map(History::points)
    }

    /// Bytes of the checkpoints it keeps.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.history.as_ref().map_or(0, History::checkpoint_bytes)
    }

    /// How many tokens of `prompt` it would not have to process.
    pub(super) fn reusable(&self, prompt: &[u32]) -> usize {
        self.history.as_ref().map_or(0, |history| history.reusable(prompt))
    }

    /// What it holds.
    pub(super) fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// The file that its conversation is kept in.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Keeps its conversation in another file from now on.
    pub(super) fn rename(&mut self, session: Option<String>) {
        self.session = session;
    }

    /// What it holds, if that is worth a file and is in none yet.
    pub(super) fn unsaved(&self) -> Option<&History> {
        let worth =
            |history: &&History| history.tokens().len() >= WORTH && !history.sequence.is_broken();
        self.history.as_ref().filter(worth).filter(|_| !self.is_saved)
    }

    /// Whether that is to be saved where there is time for it. What has failed would fail again; it
    /// is tried once more only when all would be lost.
    pub(super) fn is_to_save(&self) -> bool {
        self.unsaved().is_some() && !self.is_refused
    }

    /// A file has all that it holds, or could not be written.
    pub(super) fn set_saved(&mut self, is_saved: bool) {
        (self.is_saved, self.is_refused) = (is_saved, !is_saved);
    }

    /// Loads the file `name` in place of what it holds.
    pub(super) fn load(&mut self, engine: &Engine, store: &mut Store, name: &str) -> Result<Moved> {
        let history = match &mut self.history {
            Some(history) => history,
            none => none.insert(History::new(engine)?),
        };
        let bytes = store.load(engine, name, history)?;
        let tokens = history.tokens().len();
        self.set_saved(true);
        Ok(Moved { tokens, bytes, ..Moved::default() })
    }

    /// Empties it.
    pub(super) fn erase(&mut self, engine: &Engine) -> Moved {
        let tokens = self.held().len();
        self.history.iter_mut().for_each(|history| history.clear(engine));
        self.session = None;
        Moved { tokens, ..Moved::default() }
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
        let history = match &mut self.history {
            Some(history) => history,
            none => none.insert(History::new(engine)?),
        };
        (self.is_saved, self.is_refused) = (false, false);
        let cached = history.rewind(engine, &job.prompt, job.reuse)?;
        let cuts = history.cuts(engine, &job.prompt, options.every);
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
        let (Some(run), Some(history)) = (&mut self.run, &mut self.history) else {
            return Work::default();
        };
        match run.prefill(engine, history, options, wanted) {
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
        Some((self.history.as_mut()?.sequence(), token))
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

    /// What to read to choose a token, where so many of the largest logits can be read alone.
    pub(super) fn wanted(&self, top: usize) -> Option<(&Sequence, Wanted)> {
        let (run, history) = (self.run.as_ref()?, self.history.as_ref()?);
        let generation = Some(&run.generation).filter(|_| run.logprobs.is_none());
        let wanted = match generation {
            Some(generation) if generation.is_greedy() => Wanted::Argmax,
            Some(generation) if generation.decisive().is_some_and(|n| n <= top) => Wanted::Top,
            _ => Wanted::Logits,
        };
        Some((&history.sequence, wanted))
    }

    /// Chooses a token by what was read; true unless the request has failed.
    pub(super) fn choose(&mut self, engine: &mut Engine, outcome: Outcome) -> bool {
        let (Some(run), Some(history)) = (&mut self.run, &self.history) else { return false };
        match run.choose(engine, &history.sequence, outcome) {
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
        let is_whole = self.history.as_ref().is_some_and(|history| !history.sequence.is_broken());
        // No token suits the request; the sequence is as good as before.
        let keeps = is_whole && matches!(error, Error::Sampling(_));
        if let Some(run) = self.run.take() {
            run.send(Event::Failed(error));
        }
        if !keeps {
            self.forget();
        }
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
        history: &mut History,
        options: &CheckpointOptions,
        wanted: &dyn Fn() -> bool,
    ) -> Result<usize> {
        let Next::Prefill(tokens) = self.generation.next() else { return Ok(0) };
        let held = history.tokens().len();
        let to_cut = self.cuts.first().map_or(tokens.len(), |cut| cut - held);
        let mut after_step = |done| {
            self.report(held + done);
            match self.events.is_closed() || wanted() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        engine.prefill(history.sequence(), &tokens[..to_cut], &mut after_step)?;
        let processed = history.tokens().len() - held;
        self.generation.appended(processed);
        if self.cuts.first() == Some(&history.tokens().len()) {
            self.cuts.remove(0);
            history.keep(engine, options.count);
        }
        if self.generation.next() == Next::Done(FinishReason::Length) {
            // Nothing is to be generated: reading shows whether the device has failed.
            engine.logits(&history.sequence)?;
        }
        Ok(processed)
    }

    fn choose(&mut self, engine: &mut Engine, sequence: &Sequence, outcome: Outcome) -> Result<()> {
        let generation = &mut self.generation;
        let (id, logprobs) = match outcome {
            Outcome::Logits(logits) => {
                let id = choose(generation, &logits)?;
                (id, self.logprobs.map(|top| logprobs::of(&logits, id, top)))
            }
            Outcome::Top(top) => match top.map_err(of_model)? {
                Some(top) => (generation.sampler().sample_top(&top)?, None),
                None => (choose(generation, &engine.logits(sequence)?)?, None),
            },
            Outcome::Argmax(id) => match id.map_err(of_model)? {
                id if generation.allows(id)? => (id, None),
                _ => (choose(generation, &engine.logits(sequence)?)?, None),
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

/// A token by the settings of the request. [`Error::Sampling`] is its own fault: the logits are
/// usable.
fn choose(generation: &mut Generation, logits: &[f32]) -> Result<u32> {
    generation.choose(logits).map_err(|error| match argmax(logits) {
        Ok(_) => error,
        Err(fault) => of_model(fault),
    })
}

/// A fault of logits that no request has touched.
fn of_model(fault: Error) -> Error {
    match fault {
        Error::Sampling(reason) => Error::Device(reason),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::together, *};
    use crate::{EngineOptions, sample::SamplingParams};
    use std::path::Path;
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn a_request_that_no_token_suits_leaves_what_the_slot_holds() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        let file = fixtures.join("tiny-llama.gguf");
        let mut engine = Engine::load(&file, &EngineOptions::default(), &mut |_, _| ()).unwrap();
        let checkpoints = CheckpointOptions { memory: 0, count: 0, every: WORTH };
        let (events, mut told) = unbounded_channel();
        let mut job = Job::of(vec![7; WORTH], events);
        // Their sum is infinite.
        job.sampling = SamplingParams { logit_bias: vec![(7, 3e38); 2], ..job.sampling };
        let mut slot = Slot::default();
        slot.start(&engine, job, Duration::ZERO, &checkpoints);
        while slot.needs() == Some(Needs::Prompt) {
            slot.prefill(&mut engine, &checkpoints, &|| false);
        }
        assert!(together::step(&mut engine, vec![&mut slot]).failed);
        let last = std::iter::from_fn(|| told.try_recv().ok()).last();
        assert!(matches!(last, Some((0, Event::Failed(Error::Sampling(_))))), "{last:?}");
        assert!(slot.is_free());
        assert_eq!(slot.held().len(), WORTH);
        // A save that fails is not tried again at once, but what it was for is not saved.
        assert!(slot.is_to_save());
        slot.set_saved(false);
        assert!(!slot.is_to_save() && slot.unsaved().is_some());
        slot.set_saved(true);
        assert!(slot.unsaved().is_none());
    }
}
