//! A loaded model and the settings of the command line: completes one prompt after the other.

use std::time::{Duration, Instant};

use engine::{
    Engine, EngineOptions, Error, Gguf, Result, demo,
    generate::{FinishReason, GenerateOptions, Generation, Next},
    history::History,
    sample::{Sampler, SamplingParams},
    sequence::Sequence,
    text::{
        ChatTemplate, EncodeOptions, Message, RenderOptions, ReplyOptions, ReplyParser, ReplyPart,
    },
};

use super::{
    args::{GenerateArgs, ModelArgs, SamplingArgs},
    interrupt::{self, Interrupt},
    output, progress,
    prompt::TemplateArgs,
};

pub(super) struct Session {
    pub(super) engine: Engine,
    /// How long loading took.
    pub(super) load: Duration,
    sampling: SamplingParams,
    options: GenerateOptions,
    /// The template of the command line, in place of the file's.
    template: Option<ChatTemplate>,
    render: RenderOptions,
    hide_thinking: bool,
    /// How many points of a history are kept.
    points: usize,
}

/// A point is taken at least every so many tokens of a prompt.
const EVERY: usize = 8192;

/// What came of a prompt.
pub(super) struct Completion {
    /// Generated ids, with the one that ended generation.
    pub(super) tokens: Vec<u32>,
    /// Generated text, as shown.
    pub(super) text: String,
    pub(super) prompt_tokens: usize,
    /// Prompt tokens that the sequence held before.
    pub(super) reused: usize,
    pub(super) finish: FinishReason,
    pub(super) seed: u64,
    /// Until the first token was chosen.
    pub(super) prefill: Duration,
    /// For the tokens after the first.
    pub(super) decode: Duration,
}

impl Session {
    /// Checks the settings, loads the model, and says on stderr what is in force.
    pub(super) fn open(
        model: &ModelArgs,
        sampling: &SamplingArgs,
        generate: &GenerateArgs,
        template: &TemplateArgs,
        hide_thinking: bool,
        options: &EngineOptions,
    ) -> Result<Self> {
        // A wrong flag must not cost the time of loading.
        sampling.partial().or_default().validate()?;
        interrupt::install();
        let started = Instant::now();
        let engine = load(model, options)?;
        let sampling = sampling.partial().or(engine.sampling().clone()).or_default();
        output::note(format_args!("sampling: {sampling}"));
        Ok(Self {
            template: template.template(engine.tokenizer())?,
            render: template.render_options(),
            hide_thinking,
            load: started.elapsed(),
            points: options.checkpoints.count as usize,
            options: generate.options(),
            engine,
            sampling,
        })
    }

    /// Whether conversations can be rendered.
    pub(super) fn has_template(&self) -> bool {
        self.template().is_some()
    }

    /// The prompt text for `messages`, ending with the start of an answer if `open`.
    pub(super) fn render(&self, messages: &[Message], open: bool) -> Result<String> {
        let template = self.template().ok_or_else(|| {
            Error::Template(
                "the file has none; give one (--chat-template chatml) or use --raw".into(),
            )
        })?;
        let options = RenderOptions { add_generation_prompt: open, ..self.render.clone() };
        template.prompt(messages, &options)
    }

    /// The tokens of a rendered prompt, or of a `raw` one.
    pub(super) fn encode(&self, text: &str, raw: bool) -> Result<Vec<u32>> {
        let options = EncodeOptions { add_special: raw, parse_special: true };
        self.engine.tokenizer().encode(text, options)
    }

    /// Prints what is generated; `open` tells whether the prompt leaves thinking open.
    pub(super) fn printer(&self, open: bool) -> impl FnMut(&str) -> Result<()> + use<> {
        let mut parser = self.hide_thinking.then(|| reply(open));
        move |text| {
            let Some(parser) = &mut parser else { return output::result(text) };
            parser.push(text).into_iter().try_for_each(|part| match part {
                ReplyPart::Content(text) => output::result(text),
                _ => Ok(()),
            })
        }
    }

    /// Takes `history` to what it shares with `prompt`, continues that, and gives the text to `show`
    /// piece by piece. Ctrl-C ends it with what is there.
    pub(super) fn complete(
        &mut self,
        history: &mut History,
        prompt: Vec<u32>,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Completion> {
        let sampler = Sampler::new(self.sampling.clone())?;
        let seed = sampler.seed();
        let (prompt_tokens, reused) = (prompt.len(), history.reusable(&prompt));
        let context = self.engine.context() as usize;
        let mut generation =
            Generation::new(sampler, self.options.clone(), prompt.clone(), reused, context)?;
        history.rewind(&self.engine, &prompt, true)?;
        let mut cuts = match self.points {
            0 => Vec::new(),
            _ => history.cuts(&self.engine, &prompt, EVERY),
        };
        let interrupt = Interrupt::watch();
        let started = Instant::now();
        let mut prefill = None;
        let mut text = String::new();
        let finish = loop {
            let piece = match generation.next() {
                Next::Done(reason) => break reason,
                _ if interrupt.requested() => generation.cancel(),
                Next::Prefill(tokens) => {
                    let held = history.tokens().len();
                    let count = cuts.first().map_or(tokens.len(), |cut| cut - held);
                    self.prefill(history.sequence(), &tokens[..count], &interrupt)?;
                    generation.appended(history.tokens().len() - held);
                    if cuts.first() == Some(&history.tokens().len()) {
                        cuts.remove(0);
                        history.keep(&self.engine, self.points);
                    }
                    continue;
                }
                Next::Choose => {
                    let token = self.choose(history.sequence(), generation.sampler())?;
                    prefill.get_or_insert_with(|| started.elapsed());
                    generation.push(token, self.engine.tokenizer())
                }
                Next::Decode(token) => {
                    self.engine.decode(history.sequence(), token)?;
                    generation.appended(1);
                    continue;
                }
            };
            show(&piece)?;
            text.push_str(&piece);
        };
        if prefill.is_none() && finish != FinishReason::Cancelled {
            // Nothing was generated: reading waits for the device, so that its time and its
            // errors show all the same.
            self.engine.logits(history.sequence())?;
        }
        let elapsed = started.elapsed();
        let prefill = prefill.unwrap_or(elapsed);
        Ok(Completion {
            tokens: generation.generated().to_vec(),
            text,
            prompt_tokens,
            reused,
            finish,
            seed,
            prefill,
            decode: elapsed - prefill,
        })
    }

    fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &Interrupt,
    ) -> Result<()> {
        let bar = progress::prefill(tokens.len());
        self.engine.prefill(sequence, tokens, &mut |done| {
            bar.set_position(done as u64);
            interrupt.flow()
        })?;
        bar.finish_and_clear();
        Ok(())
    }

    fn choose(&mut self, sequence: &Sequence, sampler: &mut Sampler) -> Result<u32> {
        if sampler.is_greedy() {
            return self.engine.argmax(sequence);
        }
        if sampler.decisive().is_some_and(|n| n <= self.engine.top())
            && let Some(top) = self.engine.top_logits(sequence)?
        {
            return sampler.sample_top(&top);
        }
        sampler.sample(&self.engine.logits(sequence)?)
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref().or(self.engine.template().map(AsRef::as_ref))
    }
}

/// Takes a reply without tools apart; `open` tells whether the prompt leaves thinking open.
fn reply(open: bool) -> ReplyParser {
    ReplyParser::new(ReplyOptions { thinking: true, open, tools: None })
}

/// The message that `text` is; `open` tells whether the prompt leaves thinking open.
pub(super) fn answer(text: &str, open: bool) -> Message {
    let mut parser = reply(open);
    let (mut reasoning, mut content) = (None::<String>, String::new());
    for part in parser.push(text).into_iter().chain(parser.finish()) {
        match part {
            ReplyPart::Reasoning(part) => reasoning.get_or_insert_default().push_str(&part),
            ReplyPart::Content(part) => content.push_str(&part),
            ReplyPart::Call(_) => {}
        }
    }
    Message { reasoning_content: reasoning, ..Message::new("assistant", content) }
}

/// Refuses ids of `--tokens` that the vocabulary does not have.
pub(super) fn check_tokens(engine: &Engine, tokens: &[u32]) -> Result<()> {
    let vocab = engine.config().n_vocab;
    match tokens.iter().find(|token| **token >= vocab) {
        Some(token) => Err(Error::Usage(format!(
            "--tokens names {token}, but the vocabulary has {vocab} tokens"
        ))),
        None => Ok(()),
    }
}

/// Loads the model with a progress bar, and says where it runs.
pub(super) fn load(args: &ModelArgs, options: &EngineOptions) -> Result<Engine> {
    let gguf = match &args.model {
        Some(path) => Gguf::open(path)?,
        None => {
            output::note("no -m: this is the demo model, tiny and part of the program");
            demo::open()?
        }
    };
    let bar = progress::loading();
    let engine = Engine::from_gguf(&gguf, options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let (device, reason) = engine.device();
    output::note(format_args!("device: {} ({reason})", device.name));
    output::note(format_args!(
        "model: {} on the device, context {}, prompt steps of {}",
        output::size(engine.memory().device.total),
        engine.context(),
        engine.chunk(),
    ));
    let reach = engine.config().rope.reach(engine.config().context_length);
    if engine.context() > reach {
        output::note(format_args!(
            "the model was trained for a context of {reach}: past it memory fits, quality is unknown"
        ));
    }
    let layers = engine.config().n_layer;
    if args.n_gpu_layers.is_some_and(|n| n < layers) {
        output::note(format_args!("--n-gpu-layers: all {layers} layers run on the device"));
    }
    Ok(engine)
}
