//! What has come of a request so far, and its JSON: whole, or in chunks as it comes
//! (spec/cli-and-server.md 4.1 and 4.2).

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::{TryRng, rngs::SysRng};
use serde_json::{Map, Value, json};

use super::{
    app::Model,
    error::ApiError,
    info::BUILD,
    queue::{Chosen, Event, Logprobs, Progress, Summary},
};
use crate::{
    generate::FinishReason,
    text::{ReplyOptions, ReplyParser, ReplyPart},
};

/// The endpoint's way to tell it.
#[derive(Clone, Debug)]
pub(super) enum Format {
    /// Messages, with one call of a tool at most or several.
    Chat { reply: ReplyOptions, one_call: bool, logprobs: bool },
    /// Plain text.
    Text { logprobs: bool },
}

/// What else is told.
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

/// An answer on its way.
pub(super) struct Answer {
    format: Format,
    id: String,
    created: u64,
    model: Arc<Model>,
    telling: Telling,
    choices: Vec<Choice>,
}

/// One choice so far.
struct Choice {
    parser: ReplyParser,
    started: bool,
    reasoning: String,
    content: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    done: Option<Summary>,
}

/// What a stream sends.
#[derive(Debug, PartialEq)]
pub(super) enum Sent {
    Chunk(Value),
    Comment(String),
}

impl Answer {
    pub(super) fn new(format: Format, model: Arc<Model>, choices: usize, telling: Telling) -> Self {
        let (prefix, reply) = match &format {
            Format::Chat { reply, .. } => ("chatcmpl-", reply.clone()),
            Format::Text { .. } => ("cmpl-", ReplyOptions::default()),
        };
        let choice = || Choice {
            parser: ReplyParser::new(reply.clone()),
            started: false,
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            done: None,
        };
        Self {
            id: random_id(prefix),
            created: now(),
            telling,
            choices: std::iter::repeat_with(choice).take(choices).collect(),
            format,
            model,
        }
    }

    /// Whether every choice has ended.
    pub(super) fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.done.is_some())
    }

    /// Takes what has happened to a choice; returns what a stream sends of it.
    pub(super) fn take(&mut self, index: usize, event: Event) -> Result<Vec<Sent>, ApiError> {
        let mut sent = Vec::new();
        match event {
            Event::Prompt(progress) => {
                self.open(index, &mut sent);
                sent.push(self.progress(index, progress));
            }
            Event::Token(chosen) => {
                let logprobs = chosen.logprobs.as_ref().map(|l| self.logprob(&chosen, l));
                let choice = &mut self.choices[index];
                let parts = choice.parser.push(&chosen.text);
                choice.logprobs.extend(logprobs.clone());
                self.add(index, parts, logprobs, &mut sent);
            }
            Event::Done(summary) => {
                let parts = self.choices[index].parser.finish();
                self.add(index, parts, None, &mut sent);
                self.choices[index].done = Some(summary);
                let mut last = self.chunk(index, self.empty(), None);
                last["timings"] = timings(&summary);
                last["seed"] = self.telling.seed.into();
                sent.push(Sent::Chunk(last));
                if self.is_done() && self.telling.include_usage {
                    let mut usage = self.head(true);
                    usage["choices"] = json!([]);
                    usage["usage"] = self.usage();
                    sent.push(Sent::Chunk(usage));
                }
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok(sent)
    }

    /// The first chunk of a choice names the speaker: clients fail without it.
    fn open(&mut self, index: usize, sent: &mut Vec<Sent>) {
        let chat = matches!(self.format, Format::Chat { .. });
        if !std::mem::replace(&mut self.choices[index].started, true) && chat {
            let role = json!({"delta": {"role": "assistant", "content": null}});
            sent.push(Sent::Chunk(self.chunk(index, role, None)));
        }
    }

    fn progress(&self, index: usize, progress: Progress) -> Sent {
        let Progress { total, cached, processed, time } = progress;
        if !self.telling.progress {
            return Sent::Comment(format!("prompt {processed}/{total}"));
        }
        let mut chunk = self.chunk(index, self.empty(), None);
        chunk["prompt_progress"] = json!({
            "total": total, "cache": cached, "processed": processed, "time_ms": millis(time)
        });
        Sent::Chunk(chunk)
    }

    /// Adds parts of the reply to a choice.
    fn add(
        &mut self,
        index: usize,
        parts: Vec<ReplyPart>,
        mut logprobs: Option<Value>,
        sent: &mut Vec<Sent>,
    ) {
        let chat = matches!(self.format, Format::Chat { .. });
        let one_call = matches!(self.format, Format::Chat { one_call: true, .. });
        for part in parts {
            let choice = &mut self.choices[index];
            let delta = match part {
                ReplyPart::Reasoning(text) => {
                    choice.reasoning.push_str(&text);
                    json!({"delta": {"reasoning_content": text}})
                }
                ReplyPart::Content(text) => {
                    choice.content.push_str(&text);
                    if chat { json!({"delta": {"content": text}}) } else { json!({"text": text}) }
                }
                ReplyPart::Call(_) if one_call && !choice.calls.is_empty() => continue,
                ReplyPart::Call(call) => {
                    let function = json!({"name": call.name, "arguments": call.arguments});
                    let call = json!({
                        "id": random_id("call_"), "type": "function", "function": function
                    });
                    let mut delta = json!({"index": choice.calls.len()});
                    merge(&mut delta, &call);
                    choice.calls.push(call);
                    json!({"delta": {"tool_calls": [delta]}})
                }
            };
            let chunk = self.chunk(index, delta, logprobs.take());
            sent.push(Sent::Chunk(chunk));
        }
        if logprobs.is_some() {
            sent.push(Sent::Chunk(self.chunk(index, self.empty(), logprobs)));
        }
    }

    /// The whole answer.
    pub(super) fn whole(&self) -> Value {
        let choices = self.choices.iter().enumerate().map(|(index, choice)| {
            let mut value = json!({"index": index});
            match &self.format {
                Format::Chat { logprobs, .. } => {
                    value["message"] = choice.message();
                    if *logprobs {
                        value["logprobs"] = json!({"content": choice.logprobs});
                    }
                }
                Format::Text { logprobs } => {
                    value["text"] = choice.content.as_str().into();
                    value["logprobs"] = match logprobs {
                        true => text_logprobs(&choice.logprobs),
                        false => Value::Null,
                    };
                }
            }
            value["finish_reason"] = choice.finish().into();
            value
        });
        let mut value = self.head(false);
        value["choices"] = choices.collect();
        value["usage"] = self.usage();
        value["timings"] =
            self.choices.first().and_then(|c| c.done).map(|done| timings(&done)).into();
        value["seed"] = self.telling.seed.into();
        value
    }

    /// A line about the finished answer, for the log.
    pub(super) fn summary(&self) -> String {
        let line = |done: &Summary| {
            let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
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

    fn head(&self, chunk: bool) -> Value {
        let object = match (&self.format, chunk) {
            (Format::Chat { .. }, true) => "chat.completion.chunk",
            (Format::Chat { .. }, false) => "chat.completion",
            (Format::Text { .. }, _) => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": BUILD,
        })
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Option<Value>) -> Value {
        let choice = &self.choices[index];
        let mut value = json!({"index": index});
        merge(&mut value, &delta);
        let chat = matches!(self.format, Format::Chat { .. });
        match logprobs {
            Some(logprobs) if chat => value["logprobs"] = json!({"content": [logprobs]}),
            Some(logprobs) => value["logprobs"] = text_logprobs(&[logprobs]),
            None => {}
        }
        value["finish_reason"] = choice.done.map(|_| choice.finish()).into();
        let mut chunk = self.head(true);
        chunk["choices"] = json!([value]);
        chunk
    }

    /// A delta without news.
    fn empty(&self) -> Value {
        match self.format {
            Format::Chat { .. } => json!({"delta": {}}),
            Format::Text { .. } => json!({"text": ""}),
        }
    }

    /// Tokens of all choices; a prompt counts once, however many answers it gets.
    fn usage(&self) -> Value {
        let done: Vec<_> = self.choices.iter().map(|choice| choice.done).collect();
        let prompts = done.iter().step_by(self.telling.n).flatten();
        let (prompt, cached) = prompts.fold((0, 0), |(p, c), d| (p + d.prompt, c + d.cached));
        let generated: usize = done.iter().flatten().map(|done| done.generated).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
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

impl Choice {
    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant"});
        let only_calls = self.content.is_empty() && !self.calls.is_empty();
        message["content"] = (!only_calls).then_some(self.content.as_str()).into();
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.clone().into();
        }
        message
    }

    fn finish(&self) -> &'static str {
        match self.done.map(|done| done.finish) {
            Some(FinishReason::Length) => "length",
            _ if !self.calls.is_empty() => "tool_calls",
            _ => "stop",
        }
    }
}

/// OpenAI's older form: lists by token, with the place of each in the text.
fn text_logprobs(tokens: &[Value]) -> Value {
    let list = |key: &str| tokens.iter().map(|token| token[key].clone()).collect::<Value>();
    let top = |token: &Value| {
        let all = token["top_logprobs"].as_array().into_iter().flatten();
        let pair =
            |t: &Value| (t["token"].as_str().unwrap_or_default().to_owned(), t["logprob"].clone());
        Value::Object(all.map(pair).collect::<Map<_, _>>())
    };
    json!({
        "tokens": list("token"),
        "token_logprobs": list("logprob"),
        "top_logprobs": tokens.iter().map(top).collect::<Value>(),
    })
}

fn timings(done: &Summary) -> Value {
    let phase = |tokens: usize, time: Duration| {
        let (each, rate) = match (tokens, time.as_secs_f64()) {
            (0, _) => (0.0, 0.0),
            (n, 0.0) => (0.0, n as f64 / 1e-9),
            (n, seconds) => (seconds * 1e3 / n as f64, n as f64 / seconds),
        };
        (tokens, millis(time), each, rate)
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

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Copies the entries of one object into another.
fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `prefix` and 32 random letters and digits.
fn random_id(prefix: &str) -> String {
    let mut bytes = [0_u8; 16];
    // Without random numbers ids repeat, which hurts less than no answer.
    let _ = SysRng.try_fill_bytes(&mut bytes);
    bytes.iter().fold(prefix.to_owned(), |id, byte| id + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        demo,
        sample::PartialSampling,
        text::{Tokenizer, VocabSource},
    };

    fn answer(one_call: bool) -> Answer {
        let source = VocabSource::from_gguf(&demo::open().unwrap()).unwrap();
        let model = Model {
            name: "m".into(),
            created: 0,
            tokenizer: Arc::new(Tokenizer::new(&source).unwrap()),
            template: None,
            sampling: PartialSampling::default(),
            constraints: Default::default(),
            context: 100,
            n_vocab: 1024,
            meta: Value::Null,
        };
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let reply = ReplyOptions { thinking: true, open: true, tools: Some(tools) };
        let format = Format::Chat { reply, one_call, logprobs: false };
        let telling = Telling { n: 1, seed: 7, include_usage: false, progress: false };
        Answer::new(format, Arc::new(model), 1, telling)
    }

    fn summary() -> Summary {
        Summary {
            finish: FinishReason::Stop,
            prompt: 5,
            cached: 2,
            generated: 9,
            prompt_time: Duration::from_millis(3),
            decode_time: Duration::ZERO,
        }
    }

    /// Feeds a reply in pieces; returns the streamed chunks and the whole.
    fn told(mut answer: Answer, text: &str) -> (Vec<Value>, Value) {
        let mut chunks = Vec::new();
        let pieces = text.as_bytes().chunks(3).map(|piece| str::from_utf8(piece).unwrap());
        let tokens = pieces
            .map(|text| Event::Token(Chosen { id: 0, text: text.to_owned(), logprobs: None }));
        for event in tokens.chain([Event::Done(summary())]) {
            chunks.extend(answer.take(0, event).unwrap().into_iter().map(|sent| match sent {
                Sent::Chunk(chunk) => chunk,
                Sent::Comment(text) => panic!("{text}"),
            }));
        }
        assert!(answer.is_done());
        (chunks, answer.whole())
    }

    const REPLY: &str = "hm</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\
                         \n<tool_call>{\"name\": \"g\"}</tool_call>";

    #[test]
    fn calls_come_with_indices_and_ids_and_end_the_answer() {
        let (chunks, whole) = told(answer(false), REPLY);
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], Value::Null);
        assert_eq!(choice["message"]["reasoning_content"], "hm");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{\"a\":1}"}));
        assert_eq!(calls[1]["function"], json!({"name": "g", "arguments": "{}"}));
        assert_ne!(calls[0]["id"], calls[1]["id"]);
        let deltas = chunks.iter().filter_map(|c| c.pointer("/choices/0/delta/tool_calls/0"));
        for (i, (delta, call)) in deltas.zip(calls).enumerate() {
            assert_eq!((&delta["index"], &delta["id"]), (&json!(i), &call["id"]));
            assert_eq!(delta["function"], call["function"]);
        }
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        let usage = json!({"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 2}});
        assert_eq!(whole["usage"], usage);
        // No time has passed, and yet no rate is infinite.
        assert!(whole["timings"]["predicted_per_second"].is_number());
    }

    #[test]
    fn one_call_is_told_where_the_client_wants_no_more() {
        let (_, whole) = told(answer(true), REPLY);
        let calls = &whole["choices"][0]["message"]["tool_calls"];
        assert_eq!(calls.as_array().unwrap().len(), 1);
        assert_eq!(calls[0]["function"]["name"], "f");
    }
}
