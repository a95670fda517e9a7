//! Generation of one sequence, as a state machine: what it wants next, and what came of it.
//!
//! The machine never touches the engine, so that whoever drives it decides when its steps run: the
//! command line one after the other, a server between those of other sequences.

use serde::Serialize;

use crate::{
    Error, Result,
    sample::Sampler,
    text::{Constraint, StopMatcher, StreamDecoder, Tokenizer},
};

/// When generation ends and what of it is shown.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; none: until the end of generation or of the context. With 0 the
    /// prompt is processed and nothing generated.
    pub max_tokens: Option<usize>,
    /// Texts that end generation; they are not shown.
    pub stop: Vec<String>,
    /// Go on after end-of-generation tokens (spec/tokenizer.md 4).
    pub ignore_eos: bool,
    /// Show control tokens.
    pub show_special: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-generation token or a stop string.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The user or the client.
    Cancelled,
}

/// What has to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Append some or all of these tokens of the prompt to the sequence, then call
    /// [`Generation::appended`].
    Prefill(&'a [u32]),
    /// Choose a token by the logits of the last position, then call [`Generation::push`].
    Choose,
    /// Append this token to the sequence, then call [`Generation::appended`].
    Decode(u32),
    /// Nothing.
    Done(FinishReason),
}

/// The generation of one continuation of one sequence.
pub struct Generation {
    sampler: Sampler,
    options: GenerateOptions,
    /// The prompt, then what was generated.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// How many of `tokens` the sequence holds.
    appended: usize,
    context: usize,
    decoder: StreamDecoder,
    stops: StopMatcher,
    constraint: Option<Constraint>,
    finish: Option<FinishReason>,
}

impl Generation {
    /// Continues `prompt`, of which the sequence already holds the first `reused` tokens.
    ///
    /// `context` is what the sequence can hold. A prompt that fills it exactly still yields one
    /// token: it is chosen by the last logits but cannot be appended.
    ///
    /// # Errors
    /// [`Error::Context`] with both numbers if the prompt is longer than the context,
    /// [`Error::Usage`] if it is empty.
    pub fn new(
        mut sampler: Sampler,
        options: GenerateOptions,
        prompt: Vec<u32>,
        reused: usize,
        context: usize,
    ) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::Usage("the prompt is empty: there is nothing to continue".into()));
        }
        if prompt.len() > context {
            return Err(Error::Context(format!(
                "the prompt has {} tokens, but the context holds {context}",
                prompt.len()
            )));
        }
        prompt.iter().for_each(|&token| sampler.accept(token));
        Ok(Self {
            sampler,
            stops: StopMatcher::new(options.stop.iter().cloned()),
            options,
            prompt_len: prompt.len(),
            appended: reused.min(prompt.len()),
            tokens: prompt,
            context,
            decoder: StreamDecoder::new(),
            constraint: None,
            finish: None,
        })
    }

    /// Holds what is generated to a grammar.
    pub fn constrained(self, constraint: Option<Constraint>) -> Self {
        Self { constraint, ..self }
    }

    /// What has to happen next.
    pub fn next(&self) -> Next<'_> {
        match self.finish {
            Some(reason) => Next::Done(reason),
            None if self.appended < self.prompt_len => {
                Next::Prefill(&self.tokens[self.appended..self.prompt_len])
            }
            None if self.options.max_tokens == Some(0) => Next::Done(FinishReason::Length),
            None if self.appended == self.tokens.len() => Next::Choose,
            None => Next::Decode(self.tokens[self.appended]),
        }
    }

    /// The sequence now holds the first `count` of the tokens that [`Self::next`] asked to append.
    pub fn appended(&mut self, count: usize) {
        self.appended = self.tokens.len().min(self.appended + count);
    }

    /// The sampler, to choose with where nothing is held to a grammar.
    pub fn sampler(&mut self) -> &mut Sampler {
        &mut self.sampler
    }

    /// Whether the largest of the unchanged logits is the choice, if [`Self::allows`] it.
    pub fn is_greedy(&self) -> bool {
        self.sampler.is_greedy()
    }

    /// As [`Sampler::decisive`]; a grammar takes all logits.
    pub fn decisive(&self) -> Option<usize> {
        self.sampler.decisive().filter(|_| self.constraint.is_none())
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// [`Error::Sampling`] if the grammar needs too much work.
    pub fn allows(&mut self, token: u32) -> Result<bool> {
        self.constraint.as_mut().map_or(Ok(true), |constraint| constraint.allows(token))
    }

    /// Chooses by the logits f32 `[vocab]` of the last position.
    ///
    /// # Errors
    /// [`Error::Sampling`] as [`Sampler::sample`], or if the grammar needs too much work.
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        let Some(constraint) = &mut self.constraint else { return self.sampler.sample(logits) };
        let mut allowed = logits.to_vec();
        constraint.apply(&mut allowed)?;
        self.sampler.sample(&allowed)
    }

    /// Takes the chosen token. Returns the text that can be shown now; with the last token, all
    /// that was held back.
    pub fn push(&mut self, token: u32, tokenizer: &Tokenizer) -> String {
        if self.finish.is_some() {
            return String::new();
        }
        self.tokens.push(token);
        self.sampler.accept(token);
        let complete = self.constraint.as_mut().is_some_and(|c| c.accept(token));
        if tokenizer.is_end(token) && (complete || !self.options.ignore_eos) {
            return self.end(FinishReason::Stop);
        }
        let piece = tokenizer.piece(token, self.options.show_special);
        let decoded = self.decoder.push(piece);
        let mut text = self.show(&decoded);
        if complete {
            text += &self.end(FinishReason::Stop);
        }
        let full = self.appended >= self.context;
        if full || Some(self.generated().len()) == self.options.max_tokens {
            text += &self.end(FinishReason::Length);
        }
        text
    }

    /// Ends generation from outside. Returns the text that was held back.
    pub fn cancel(&mut self) -> String {
        self.end(FinishReason::Cancelled)
    }

    /// The stop string that ended generation.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.stopped_by()
    }

    /// The generated tokens, with the one that ended generation.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// The tokens that the sequence holds.
    pub fn held(&self) -> &[u32] {
        &self.tokens[..self.appended]
    }

    /// Prompt tokens, reused ones among them.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    fn show(&mut self, text: &str) -> String {
        let step = self.stops.push(text);
        if step.stopped {
            self.finish = Some(FinishReason::Stop);
        }
        step.text
    }

    fn end(&mut self, reason: FinishReason) -> String {
        if self.finish.is_some() {
            return String::new();
        }
        let tail = self.decoder.finish();
        let mut text = self.show(&tail);
        text += &self.stops.finish();
        self.finish.get_or_insert(reason);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sample::SamplingParams,
        text::{SpecialToken, VocabSource},
    };

    /// Ids below 256 are bytes.
    const CONTROL: u32 = 256;
    const END: u32 = 257;
    const A: u32 = 97;
    const B: u32 = 98;
    const C: u32 = 99;
    /// The two bytes of `é`.
    const E1: u32 = 0xc3;
    const E2: u32 = 0xa9;

    fn tokenizer() -> Tokenizer {
        let mut beyond = 256..;
        let letter = |byte: u32| {
            let same = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            let code = if same { Some(byte) } else { beyond.next() };
            char::from_u32(code.unwrap()).unwrap().to_string().into_bytes()
        };
        let bytes: Vec<_> = (0..256).map(letter).collect();
        let special = [b"<|x|>".to_vec(), b"<|im_end|>".to_vec()];
        let token_types = (0..258).map(|id| if id < 256 { 1 } else { 3 }).collect();
        Tokenizer::new(&VocabSource {
            model: "gpt2".into(),
            pre: Some("qwen2".into()),
            tokens: bytes.into_iter().chain(special).collect(),
            token_types: Some(token_types),
            special: vec![(SpecialToken::Eos, END)],
            ..Default::default()
        })
        .unwrap()
    }

    fn options(max_tokens: Option<usize>, stop: &[&str]) -> GenerateOptions {
        let stop = stop.iter().map(|&text| text.to_owned()).collect();
        GenerateOptions { max_tokens, stop, ..Default::default() }
    }

    fn generation(options: GenerateOptions, prompt: &[u32], context: usize) -> Result<Generation> {
        let sampler = Sampler::new(SamplingParams::default())?;
        Generation::new(sampler, options, prompt.to_vec(), 0, context)
    }

    /// Drives `generation` with chosen tokens as long as it wants; returns the pieces of text.
    fn drive(generation: &mut Generation, choices: &[u32]) -> (Vec<String>, FinishReason) {
        let tokenizer = tokenizer();
        let mut choices = choices.iter();
        let mut pieces = Vec::new();
        loop {
            match generation.next() {
                Next::Prefill(tokens) => {
                    // In steps of two, so that prompts take several.
                    let count = tokens.len().min(2);
                    generation.appended(count);
                }
                Next::Decode(_) => generation.appended(1),
                Next::Choose => match choices.next() {
                    Some(&token) => pieces.push(generation.push(token, &tokenizer)),
                    None => pieces.push(generation.cancel()),
                },
                Next::Done(reason) => return (pieces, reason),
            }
        }
    }

    fn outcome(options: GenerateOptions, choices: &[u32]) -> (String, FinishReason, usize) {
        let mut generation = generation(options, &[A, B, C], 100).unwrap();
        let (pieces, reason) = drive(&mut generation, choices);
        (pieces.concat(), reason, generation.generated().len())
    }

    #[test]
    fn ends_with_the_limit_the_end_token_or_from_outside() {
        let unlimited = || options(None, &[]);
        assert_eq!(
            outcome(options(Some(2), &[]), &[A, B, C]),
            ("ab".into(), FinishReason::Length, 2)
        );
        assert_eq!(outcome(unlimited(), &[A, END, B]), ("a".into(), FinishReason::Stop, 2));
        assert_eq!(outcome(unlimited(), &[A, B]), ("ab".into(), FinishReason::Cancelled, 2));
        assert_eq!(outcome(options(Some(0), &[]), &[A]), ("".into(), FinishReason::Length, 0));
        let ignoring = GenerateOptions { ignore_eos: true, ..options(Some(3), &[]) };
        assert_eq!(outcome(ignoring, &[A, END, B]), ("ab".into(), FinishReason::Length, 3));
    }

    #[test]
    fn control_tokens_show_only_when_asked_for() {
        assert_eq!(outcome(options(Some(2), &[]), &[CONTROL, A]).0, "a");
        let special = GenerateOptions { show_special: true, ..options(Some(2), &[]) };
        assert_eq!(outcome(special, &[CONTROL, A]).0, "<|x|>a");
    }

    #[test]
    fn stop_strings_are_found_across_tokens_and_never_shown() {
        let stopped = outcome(options(None, &["bc"]), &[A, B, C, A]);
        assert_eq!(stopped, ("a".into(), FinishReason::Stop, 3));
        // What could have become one comes out in the end, whatever ended it.
        assert_eq!(outcome(options(Some(2), &["bc"]), &[A, B]).0, "ab");
        assert_eq!(outcome(options(None, &["bc"]), &[A, B, END]).0, "ab");
        assert_eq!(outcome(options(None, &["bc"]), &[A, B]).0, "ab");
        // The broken character at the limit completes a stop string.
        let mut g = generation(options(None, &["b", "bc"]), &[A], 100).unwrap();
        drive(&mut g, &[A, B, C]);
        assert_eq!(g.stopped_by(), Some("b"));
        let broken = outcome(options(Some(2), &["\u{fffd}"]), &[A, E1]);
        assert_eq!(broken, ("a".into(), FinishReason::Stop, 2));
    }

    #[test]
    fn characters_come_whole_and_a_tail_ends_cleanly() {
        let mut whole = generation(options(Some(3), &[]), &[0], 100).unwrap();
        assert_eq!(drive(&mut whole, &[E1, E2, A]).0, ["", "é", "a"]);
        assert_eq!(outcome(options(Some(2), &[]), &[A, E1]).0, "a\u{fffd}");
    }

    #[test]
    fn the_context_bounds_prompt_and_generation() {
        for (prompt, generated, held) in [(3, 3, 5), (4, 2, 5), (5, 1, 5)] {
            let mut generation = generation(options(None, &[]), &vec![0; prompt], 5).unwrap();
            let (_, reason) = drive(&mut generation, &[0; 10]);
            assert_eq!(reason, FinishReason::Length);
            assert_eq!(generation.generated().len(), generated, "prompt of {prompt}");
            assert_eq!(generation.held().len(), held);
        }
        let error = generation(options(None, &[]), &[0; 6], 5).err().unwrap();
        assert!(matches!(error, Error::Context(_)));
        assert!(error.to_string().contains('6') && error.to_string().contains('5'), "{error}");
        assert!(matches!(generation(options(None, &[]), &[], 5).err().unwrap(), Error::Usage(_)));
    }

    #[test]
    fn only_what_the_sequence_lacks_is_prefilled() {
        let sampler = Sampler::new(SamplingParams::default()).unwrap();
        let mut g = Generation::new(sampler, options(None, &[]), vec![0, 1, 2], 1, 9).unwrap();
        assert_eq!(g.next(), Next::Prefill(&[1, 2]));
        g.appended(1);
        assert_eq!(g.next(), Next::Prefill(&[2]));
        assert_eq!((g.held(), g.prompt_len()), (&[0, 1][..], 3));
        g.cancel();
        assert_eq!(g.next(), Next::Done(FinishReason::Cancelled));
        assert_eq!(g.push(0, &tokenizer()), "", "nothing follows the end");
        assert!(g.generated().is_empty());
    }

    #[test]
    fn penalties_see_the_prompt_and_what_was_generated() {
        let greedy =
            SamplingParams { temperature: 0.0, presence_penalty: 5.0, ..Default::default() };
        let sampler = Sampler::new(greedy).unwrap();
        let mut g = Generation::new(sampler, options(None, &[]), vec![0], 0, 9).unwrap();
        let logits = [3.0, 2.0, 1.0];
        assert_eq!(g.sampler().sample(&logits).unwrap(), 1);
        g.push(1, &tokenizer());
        assert_eq!(g.sampler().sample(&logits).unwrap(), 2);
    }
}
