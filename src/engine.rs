//! The engine: a model on a device, and the steps that sequences take through it. One narrow
//! interface for the command line, the server, benches and tests.

mod batches;
mod fit;
mod options;
mod outcome;
mod saved;
mod step;
mod synthetic;
mod timing;
mod warm;

pub(crate) use batches::{Batches, Member};
pub use options::EngineOptions;
pub(crate) use outcome::most_bytes;
pub use outcome::{Outcome, Wanted};

use step::Head;
use timing::Timing;

use crate::{
    Error, Result,
    gguf::Gguf,
    gpu::{AdapterReport, Counters, Gpu, MemoryReport, Pace, Profile, Readback, Usage},
    kv::{AttentionReads, CacheOptions, KvCounts, KvHost, KvStats, Placement, Resident, Seen},
    model::{
        Model, ModelConfig, Observer, Workspace,
        tensors::check_tensors,
        weights::{Loader, Progress},
    },
    ngram::NgramTable,
    ops::{Tensor, rope::RopeTable, top_logits},
    sample::PartialSampling,
    sequence::{Checkpoint, Sequence},
    session::Identity,
    text::{ChatTemplate, Tokenizer, VocabSource},
};
use std::{
    ops::{ControlFlow, Range},
    path::Path,
    sync::Arc,
};

/// A model on a device.
pub struct Engine {
    gpu: Gpu,
    config: ModelConfig,
    model: Model,
    ngram: Option<NgramTable>,
    ws: Workspace,
    rope: RopeTable,
    batches: Batches,
    /// One row of what a longer step leaves for the head.
    last: Tensor,
    readback: Readback,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    sampling: PartialSampling,
    context: u32,
    cache: CacheOptions,
    placement: Placement,
    identity: Identity,
    /// Bytes of the cache at a full context, as planned.
    planned: Option<Resident>,
    timing: Timing,
    counts: KvCounts,
    /// What host memory costs has been said.
    warned: bool,
    pace: Pace,
}

impl Engine {
    /// Loads the model at `path` (any part of a multi-part file).
    ///
    /// # Errors
    /// A file that is wrong or not supported, or a device that cannot hold it.
    pub fn load(path: &Path, options: &EngineOptions, progress: Progress<'_>) -> Result<Self> {
        Self::from_gguf(&Gguf::open(path)?, options, progress)
    }

    /// Loads an opened model, which is not needed afterwards.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_gguf(gguf: &Gguf, options: &EngineOptions, progress: Progress<'_>) -> Result<Self> {
        let mut config = ModelConfig::from_gguf(gguf)?;
        options.rope.apply(&mut config.rope, config.context_length)?;
        options.cache_k.check(config.head_dim)?;
        options.cache_v.check(config.head_dim)?;
        for unused in check_tensors(&config, gguf)? {
            tracing::warn!("tensor {unused} is not used");
        }
        let vocab = VocabSource::from_gguf(gguf)?;
        let tokenizer = Tokenizer::new(&vocab)?;
        let has_template = vocab.chat_template.is_some();
        let template =
            has_template.then(|| ChatTemplate::of_model(&vocab, &tokenizer)).transpose()?;
        let gpu = Gpu::open(&options.device)?;
        let fitted = match options.fit {
            true => fit::fit(gguf, &config, options, &gpu)?,
            false => None,
        };
        // Touches every tensor, and the system maps what is around.
        let identity = saved::identity(gguf, &config, options);
        gguf.release_all(false);
        let mut loader = Loader::new(gguf, &gpu, options.experts_host, progress);
        let factors = loader.optional_values("rope_freqs.weight")?;
        let (frequencies, magnitude) = config.rope.frequencies(factors.as_deref());
        let model = Model::load(&mut loader, &config)?;
        gguf.release_all(gpu.adapter().kind.shares_memory());
        let ngram = config.ngram().map(|_| NgramTable::open(gguf, options.ngram)).transpose()?;
        let context = match &fitted {
            Some(fitted) => fitted.context,
            None => options.context.unwrap_or_else(|| config.rope.reach(config.context_length)),
        };
        let chunk = options.chunk.clamp(1, context.max(1));
        let ws = Workspace::new(&gpu, &config, chunk, context, options.sequences)?;
        ws.host_rows().into_iter().for_each(|rows| rows.clear(&gpu));
        let mut engine = Self {
            last: Tensor::scratch(&gpu, "last hidden", 1, model.hidden(&ws).width)?,
            readback: gpu.readback(most_bytes(config.n_vocab, ws.sequences))?,
            rope: RopeTable::new(frequencies, magnitude),
            cache: CacheOptions {
                k: options.cache_k,
                v: options.cache_v,
                staging: options.kv_staging,
            },
            placement: match &fitted {
                Some(fitted) => fitted.placement,
                None => Placement {
                    wish: options.kv_host,
                    in_place: gpu.caps().host_buffers,
                    device: room(options.memory.device, gpu.memory().device),
                    host: room(options.memory.host, gpu.memory().host),
                },
            },
            identity,
            planned: fitted.as_ref().map(|fitted| fitted.resident),
            timing: Timing::new(options, &config),
            batches: Batches::default(),
            counts: KvCounts::default(),
            warned: false,
            pace: Pace::default(),
            gpu,
            config,
            model,
            ngram,
            ws,
            tokenizer: Arc::new(tokenizer),
            template: template.map(Arc::new),
            sampling: PartialSampling::from_metadata(gguf.metadata())?,
            context,
        };
        match (fitted, options.kv_host) {
            (Some(fitted), _) => engine.warn_of_tokens_on_host(fitted.host_tokens),
            (None, KvHost::On) => engine.warn_of_tokens_on_host(context),
            // A step will tell.
            (None, _) => {}
        }
        Ok(engine)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The file's tokenizer; it and the template can be shared with other threads.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The file's chat template.
    pub fn template(&self) -> Option<&Arc<ChatTemplate>> {
        self.template.as_ref()
    }

    /// The sampling parameters that the file recommends.
    pub fn sampling(&self) -> &PartialSampling {
        &self.sampling
    }

    /// Tokens a sequence can hold.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Tokens of a prefill step: the chunk asked for, or what the device's bindings allow.
    pub fn chunk(&self) -> u32 {
        self.ws.rows
    }

    /// Bytes that the device reads and writes, by heap and kind.
    pub fn memory(&self) -> MemoryReport {
        self.gpu.memory()
    }

    /// Objects created on the device so far.
    pub fn counters(&self) -> Counters {
        self.gpu.counters()
    }

    /// The kernel variants in use.
    pub fn paths(&self) -> Vec<String> {
        self.gpu.kernel_names()
    }

    /// The adapter and why it was chosen.
    pub fn device(&self) -> (&AdapterReport, &str) {
        (self.gpu.adapter(), self.gpu.reason())
    }

    /// Times by op so far, when measured.
    pub fn profile(&self) -> Option<&Profile> {
        self.timing.profile.as_ref()
    }

    /// What attention has read so far.
    pub fn attention_reads(&self) -> AttentionReads {
        self.counts.reads()
    }

    /// The traffic of keys and values so far; waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn kv_stats(&mut self) -> Result<KvStats> {
        let staging = self.ws.staging.as_ref();
        let copied = staging.map_or(Ok(0), |staging| staging.copied(&self.gpu))?;
        let rows = self.ws.host_rows().map_or(Ok(Default::default()), |r| r.counts(&self.gpu))?;
        Ok(self.counts.report(&Seen {
            copied,
            rows,
            read_ns: self.timing.reads(&self.gpu)?,
            resident: Resident::of(&self.gpu.memory()),
            planned: self.planned,
        }))
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn new_sequence(&self) -> Result<Sequence> {
        let seq = Sequence::new(&self.gpu, &self.config, self.cache, self.batches.member())?;
        seq.state.clear(&self.gpu);
        Ok(seq)
    }

    /// Where segments of caches go from now on; those that are there stay.
    pub fn place(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// Empties `seq`; its buffers are kept.
    pub fn clear(&self, seq: &mut Sequence) {
        seq.state.clear(&self.gpu);
        seq.tokens.clear();
        seq.broken = false;
    }

    /// A point of `seq` to come back to.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn checkpoint(&self, seq: &Sequence) -> Result<Checkpoint> {
        Ok(seq.checkpoint(seq.tokens.len(), seq.state.checkpoint(&self.gpu)?))
    }

    /// Takes `seq` back to `checkpoint`, which was taken of it and before which nothing has changed.
    ///
    /// # Errors
    /// [`Error::Context`] when the checkpoint is of other tokens or of another sequence.
    pub fn restore(&self, seq: &mut Sequence, checkpoint: &Checkpoint) -> Result<()> {
        if !seq.has(checkpoint) {
            return Err(Error::Context(format!(
                "a checkpoint at {} is not one of this sequence of {} tokens",
                checkpoint.position,
                seq.tokens.len()
            )));
        }
        seq.state.restore(&self.gpu, &checkpoint.state);
        seq.tokens.truncate(checkpoint.position);
        seq.broken = false;
        Ok(())
    }

    /// Appends `tokens` in chunks; then the logits of the last one are available. `progress` is
    /// told how many are processed and may break off, which leaves the sequence at that point.
    ///
    /// # Errors
    /// [`Error::Context`] when they do not fit, before anything is processed.
    pub fn prefill(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<()> {
        self.admit(seq, tokens)?;
        let mut after = |_: &mut Self, _: &Sequence, done: Range<usize>| Ok(progress(done.end));
        self.steps(seq, tokens, self.ws.rows, Head::AtTheEnd, &mut after)
    }

    /// Appends one token; then its logits are available.
    ///
    /// # Errors
    /// [`Error::Context`] when the context is full.
    pub fn decode(&mut self, seq: &mut Sequence, token: u32) -> Result<()> {
        self.decode_each(&mut [(seq, token)])
    }

    /// Appends its token to each of at most [`Self::together`] sequences in one step, which reads
    /// the weights once; then their logits are available. They equal those of decoding each alone.
    ///
    /// # Errors
    /// [`Error::Context`] when there are more sequences, or the context of one is full, before
    /// anything is processed.
    pub fn decode_each(&mut self, batch: &mut [(&mut Sequence, u32)]) -> Result<()> {
        if batch.len() > self.together() {
            return Err(Error::Context(format!(
                "{} sequences cannot step together, only {}",
                batch.len(),
                self.together()
            )));
        }
        if batch.is_empty() {
            return Ok(());
        }
        for (seq, token) in &*batch {
            self.admit(seq, &[*token])?;
        }
        let mut turns: Vec<_> = (batch.iter_mut())
            .map(|(seq, token)| (&mut **seq, std::slice::from_ref(&*token)))
            .collect();
        // One recording for all orders of the same sequences.
        turns.sort_by_key(|(seq, _)| seq.member.number());
        let rows = self.request_each(&turns)?;
        self.step(turns, rows, true)
    }

    /// Sequences that can take a token in the same step.
    pub fn together(&self) -> usize {
        self.ws.sequences as usize
    }

    /// Logits of the last token.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn logits(&mut self, seq: &Sequence) -> Result<Vec<f32>> {
        let mut logits = vec![0.0_f32; self.config.n_vocab as usize];
        let bytes = bytemuck::cast_slice_mut(&mut logits);
        self.readback.read(&self.gpu, &seq.logits.buf, 0, bytes)?;
        Ok(logits)
    }

    /// The largest of the last token's logits, found on the device; the lowest id of equals.
    ///
    /// # Errors
    /// [`Error::Sampling`] when a logit is NaN or infinite.
    pub fn argmax(&mut self, seq: &Sequence) -> Result<u32> {
        let mut bytes = [0_u8; top_logits::BEST_BYTES as usize];
        self.readback.read(&self.gpu, &seq.choice, 0, &mut bytes)?;
        top_logits::best(&bytes)
    }

    /// Token and logit of at least the [`Self::top`] largest of the last token's logits, and of
    /// all that equal one of them, found on the device; by token, without those of minus infinity.
    /// None: too many are equal.
    ///
    /// # Errors
    /// As [`Self::argmax`].
    pub fn top_logits(&mut self, seq: &Sequence) -> Result<Option<Vec<(u32, f32)>>> {
        let mut bytes = [0_u8; top_logits::BYTES as usize];
        self.readback.read(&self.gpu, &seq.choice, 0, &mut bytes)?;
        top_logits::top(&bytes)
    }

    /// How many of a token's logits [`Self::top_logits`] never leaves out: fewer than there are.
    pub fn top(&self) -> usize {
        top_logits::TOP.min(self.config.n_vocab.saturating_sub(1) as usize)
    }

    /// Appends `tokens` in chunks of `chunk` and gives `sink` the logits of every index of
    /// `tokens` in `wanted` (ascending).
    ///
    /// # Errors
    /// As [`Self::prefill`], and whatever `sink` returns.
    pub fn logits_of(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        chunk: u32,
        wanted: &[usize],
        sink: &mut dyn FnMut(usize, Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        self.admit(seq, tokens)?;
        let mut wanted = wanted.iter().copied().peekable();
        let mut after = |engine: &mut Self, seq: &Sequence, done: Range<usize>| {
            let (first, last) = (done.start, done.end - 1);
            // The row whose logits the sequence holds: the last, in the end as well.
            let mut shown = last;
            while let Some(index) = wanted.next_if(|i| *i <= last) {
                engine.show(seq, index - first, index != shown)?;
                shown = index;
                sink(index, engine.logits(seq)?)?;
            }
            engine.show(seq, last - first, last != shown)?;
            Ok(ControlFlow::Continue(()))
        };
        let size = chunk.clamp(1, self.ws.rows);
        self.steps(seq, tokens, size, Head::OfEveryStep, &mut after)
    }

    /// Computes the logits of another `row` of the last step, if it `differs` from the one shown.
    fn show(&mut self, seq: &Sequence, row: usize, differs: bool) -> Result<()> {
        if differs {
            let head = self.record_row(seq, row as u32)?;
            self.submit(&head, 1)?;
        }
        Ok(())
    }

    /// Records and runs one step of at most a chunk while `observer` looks on; for tests.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub fn observe(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.admit(seq, tokens)?;
        let rows = self.request_rows(&seq.tokens, tokens, 0..tokens.len())?;
        let mut turns = [(seq, tokens)];
        let shape = self.prepare(&mut turns, false)?;
        let pieces = self.record(&turns, &shape, Some(observer))?;
        self.run(&mut turns, (&shape, &pieces), rows, true)
    }

    /// The device, for reading what an observer has copied.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn admit(&self, seq: &Sequence, tokens: &[u32]) -> Result<()> {
        if seq.broken {
            return Err(Error::Context("an earlier step failed: clear or restore first".into()));
        }
        if tokens.is_empty() {
            return Err(Error::Context("there are no tokens to process".into()));
        }
        let wanted = seq.tokens.len() + tokens.len();
        if wanted > self.context as usize {
            return Err(Error::Context(format!(
                "{wanted} tokens do not fit the context of {}",
                self.context
            )));
        }
        match tokens.iter().find(|t| **t >= self.config.n_vocab) {
            Some(t) => Err(Error::Context(format!(
                "token {t} is outside the vocabulary of {}",
                self.config.n_vocab
            ))),
            None => Ok(()),
        }
    }
}

/// What is left of `most` bytes beside what is `used`.
fn room(most: Option<u64>, used: Usage) -> u64 {
    most.map_or(u64::MAX, |most| most.saturating_sub(used.total))
}
