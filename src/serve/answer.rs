//! What has come of a request so far. How it is told is the endpoint's [`Shape`].

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::{TryRng, rngs::SysRng};
use serde_json::{Value, json};

use super::{
    app::Model,
    error::ApiError,
    queue::{Chosen, Event, Logprobs, Progress, Summary},
};
use crate::{
    generate::FinishReason,
    text::{ReplyOptions, ReplyParser, ReplyPart},
};

/// What a client is told beside the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Telling {
    /// Answers to each prompt.
    pub(super) n: usize,
    /// Passed back with the same request, it gives the same answer.
    pub(super) seed: u64,
    /// Streams end with the number of tokens.
    pub(super) include_usage: bool,
    /// Streams tell how far the prompt is, for programs rather than people.
    pub(super) progress: bool,
}

/// An endpoint's way to tell an answer (spec/cli-and-server.md 4).
pub(super) trait Shape: Send {
    /// The object of the whole answer.
    fn whole(&self, answer: &Answer) -> Value;

    /// What a stream sends of `update` to a choice, which `answer` holds already.
    fn stream(&mut self, answer: &Answer, choice: usize, update: &Update) -> Vec<Sent>;

    /// The data that ends a stream.
    fn end(&self) -> Option<&'static str> {
        None
    }

    /// What a stream sends of an error.
    fn error(&self, error: &ApiError) -> Sent {
        Sent::Data(error.body())
    }
}

/// What a stream sends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sent {
    Data(Value),
    /// Named by its `type`, as OpenAI's Responses are.
    Event(Value),
    Comment(String),
}

/// An answer on its way.
pub(super) struct Answer {
    pub(super) id: String,
    /// In seconds since 1970.
    pub(super) created: u64,
    pub(super) model: Arc<Model>,
    pub(super) telling: Telling,
    pub(super) choices: Vec<Choice>,
    /// It is told as it comes, and nothing of that twice.
    pub(super) is_streamed: bool,
    one_call: bool,
}

/// One choice so far.
pub(super) struct Choice {
    parser: ReplyParser,
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
    pub(super) tokens: Vec<u32>,
    /// Of the tokens, those of the thinking.
    pub(super) thought: usize,
    /// Kept for the whole answer alone: they are the most of it.
    pub(super) logprobs: Vec<Value>,
    pub(super) done: Option<Summary>,
}

/// What has happened to a choice.
pub(super) enum Update {
    /// Its prompt is processed up to here.
    Prompt(Progress),
    /// A token was chosen, or the end has shown what the text before it is.
    Parts {
        token: Option<u32>,
        parts: Vec<Part>,
        logprobs: Option<Value>,
    },
    Done(Summary),
}

/// A part of a reply.
pub(super) enum Part {
    Reasoning(String),
    Content(String),
    Call(Call),
}

/// A call of a tool.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// A JSON object, as text.
    pub(super) arguments: String,
}

/// How replies are taken apart.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) reply: ReplyOptions,
    /// Calls after the first are left out.
    pub(super) one_call: bool,
}

impl Answer {
    /// An answer of so many choices, whose id begins with `prefix`.
    pub(super) fn new(
        prefix: &str,
        reading: Reading,
        model: Arc<Model>,
        choices: usize,
        telling: Telling,
    ) -> Self {
        let choice = || Choice {
            parser: ReplyParser::new(reading.reply.clone()),
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
            thought: 0,
            logprobs: Vec::new(),
            done: None,
        };
        Self {
            id: random_id(prefix),
            created: now(),
            telling,
            choices: std::iter::repeat_with(choice).take(choices).collect(),
            is_streamed: false,
            one_call: reading.one_call,
            model,
        }
    }

    /// Whether every choice has ended.
    pub(super) fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.done.is_some())
    }

    /// Takes what has happened to a choice; returns it as it can be told.
    pub(super) fn take(&mut self, index: usize, event: Event) -> Result<Vec<Update>, ApiError> {
        Ok(match event {
            Event::Prompt(progress) => vec![Update::Prompt(progress)],
            Event::Token(chosen) => {
                let logprobs = chosen.logprobs.as_ref().map(|l| self.logprob(&chosen, l));
                let choice = &mut self.choices[index];
                choice.tokens.push(chosen.id);
                if !self.is_streamed {
                    choice.logprobs.extend(logprobs.clone());
                }
                let parts = choice.parser.push(&chosen.text);
                let parts = self.add(index, parts);
                let choice = &mut self.choices[index];
                if choice.content.is_empty() && choice.calls.is_empty() {
                    choice.thought += usize::from(!choice.reasoning.is_empty());
                }
                vec![Update::Parts { token: Some(chosen.id), parts, logprobs }]
            }
            Event::Done(summary) => {
                let parts = self.choices[index].parser.finish();
                let parts = self.add(index, parts);
                self.choices[index].done = Some(summary.clone());
                let rest = Update::Parts { token: None, parts, logprobs: None };
                vec![rest, Update::Done(summary)]
            }
            Event::Failed(error) => return Err(error.into()),
        })
    }

    /// Adds parts of the reply to a choice.
    fn add(&mut self, index: usize, parts: Vec<ReplyPart>) -> Vec<Part> {
        let choice = &mut self.choices[index];
        let mut added = Vec::with_capacity(parts.len());
        for part in parts {
            added.push(match part {
                ReplyPart::Reasoning(text) => {
                    choice.reasoning.push_str(&text);
                    Part::Reasoning(text)
                }
                ReplyPart::Content(text) => {
                    choice.content.push_str(&text);
                    Part::Content(text)
                }
                ReplyPart::Call(_) if self.one_call && !choice.calls.is_empty() => continue,
                ReplyPart::Call(call) => {
                    let id = random_id("call_");
                    let call = Call { id, name: call.name, arguments: call.arguments };
                    choice.calls.push(call.clone());
                    Part::Call(call)
                }
            });
        }
        added
    }

    /// A line about the finished answer, for the log.
    pub(super) fn summary(&self) -> String {
        let line = |done: &Summary| {
            format!(
                "prompt {} tokens ({} cached), {:.1} tok/s, first token after {:.0} ms | generated \
                 {} tokens, {:.1} tok/s",
                done.prompt,
                done.cached,
                rate(done.prompt - done.cached, done.prompt_time),
                millis(done.prompt_time),
                done.generated,
                rate(done.generated.saturating_sub(1), done.decode_time),
            )
        };
        let lines: Vec<_> = self.choices.iter().filter_map(|c| c.done.as_ref()).map(line).collect();
        format!("{}: {}", self.id, lines.join("; "))
    }

    /// Tokens of all choices; a prompt counts once, however many answers it gets.
    pub(super) fn usage(&self) -> Usage {
        let done = || self.choices.iter().map(|choice| choice.done.as_ref());
        let prompts = done().step_by(self.telling.n).flatten();
        let (prompt, cached) = prompts.fold((0, 0), |(p, c), d| (p + d.prompt, c + d.cached));
        Usage { prompt, cached, generated: done().flatten().map(|done| done.generated).sum() }
    }

    fn logprob(&self, chosen: &Chosen, logprobs: &Logprobs) -> Value {
        let token = |id: u32, logprob: f32| {
            let bytes = self.model.tokenizer.piece(id, true);
            let text = String::from_utf8_lossy(bytes);
            // JSON has no infinity.
            json!({"id": id, "token": text, "bytes": bytes, "logprob": logprob.max(f32::MIN)})
        };
        let mut value = token(chosen.id, logprobs.chosen);
        value["top_logprobs"] = logprobs.top.iter().map(|(id, log)| token(*id, *log)).collect();
        value
    }
}

impl Part {
    /// Its text, if it is part of the answer.
    pub(super) fn content(&self) -> Option<&str> {
        match self {
            Self::Content(text) => Some(text),
            _ => None,
        }
    }
}

impl Choice {
    /// Why it ended, in the words of OpenAI's API.
    pub(super) fn finish(&self) -> &'static str {
        match self.done.as_ref().map(|done| done.finish) {
            Some(FinishReason::Length) => "length",
            _ if !self.calls.is_empty() => "tool_calls",
            _ => "stop",
        }
    }
}

/// Tokens that were processed.
pub(super) struct Usage {
    pub(super) prompt: usize,
    /// Of the prompt, those that an earlier request had left.
    pub(super) cached: usize,
    pub(super) generated: usize,
}

/// How far a prompt is, as llama.cpp tells it.
pub(super) fn progress(progress: &Progress) -> Value {
    let Progress { total, cached, processed, time } = *progress;
    json!({"total": total, "cache": cached, "processed": processed, "time_ms": millis(time)})
}

/// Counts and times as llama.cpp tells them.
pub(super) fn timings(done: &Summary) -> Value {
    let phase = |tokens: usize, time: Duration| {
        let each = if tokens == 0 { 0.0 } else { millis(time) / tokens as f64 };
        (tokens, millis(time), each, rate(tokens, time))
    };
    let (prompt_n, prompt_ms, prompt_each, prompt_rate) =
        phase(done.prompt - done.cached, done.prompt_time);
    // The first token comes of the prompt's logits.
    let after_first = phase(done.generated.saturating_sub(1), done.decode_time);
    let (_, predicted_ms, predicted_each, predicted_rate) = after_first;
    json!({
        "cache_n": done.cached,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": done.generated,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_each,
        "predicted_per_second": predicted_rate,
    })
}

/// Tokens a second; 0 where there was no time to measure.
fn rate(tokens: usize, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => tokens as f64 / time.as_secs_f64(),
    }
}

/// In milliseconds.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `prefix` and 32 random letters and digits.
pub(super) fn random_id(prefix: &str) -> String {
    let mut bytes = [0_u8; 16];
    // Without random numbers ids repeat, which hurts less than no answer.
    let _ = SysRng.try_fill_bytes(&mut bytes);
    bytes.iter().fold(prefix.to_owned(), |id, byte| id + &format!("{byte:02x}"))
}
