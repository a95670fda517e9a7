//! Chat and text completions as OpenAI's API tells them (spec/cli-and-server.md 4.1 and 4.2).

use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, Call, Choice, Part, Sent, Shape, Update, progress, timings},
    info::BUILD,
};

/// Messages.
pub(super) struct Chat {
    /// Probabilities are told.
    logprobs: bool,
    /// Choices whose first chunk, which names the speaker, is sent.
    opened: Vec<usize>,
}

/// Plain text.
pub(super) struct Text {
    /// Probabilities are told.
    pub(super) logprobs: bool,
}

impl Chat {
    pub(super) fn new(logprobs: bool) -> Self {
        Self { logprobs, opened: Vec::new() }
    }
}

impl Shape for Chat {
    fn whole(&self, answer: &Answer) -> Value {
        whole(answer, "chat.completion", |choice| {
            let mut value = json!({"message": message(choice)});
            if self.logprobs {
                value["logprobs"] = json!({"content": choice.logprobs});
            }
            value
        })
    }

    fn stream(&mut self, answer: &Answer, index: usize, update: &Update) -> Vec<Sent> {
        let mut sent = Vec::new();
        // Clients fail where nobody is named before the first text.
        if !self.opened.contains(&index) {
            self.opened.push(index);
            let role = json!({"delta": {"role": "assistant", "content": null}});
            sent.push(Sent::Data(chunk(answer, index, CHUNK, role)));
        }
        let empty = || json!({"delta": {}});
        match update {
            Update::Prompt(now) if !answer.telling.progress => {
                sent.push(Sent::Comment(format!("prompt {}/{}", now.processed, now.total)));
            }
            Update::Prompt(now) => {
                let mut chunk = chunk(answer, index, CHUNK, empty());
                chunk["prompt_progress"] = progress(now);
                sent.push(Sent::Data(chunk));
            }
            Update::Parts { parts, logprobs, .. } => {
                // Indices of calls go on from part to part.
                let calls = parts.iter().filter(|part| matches!(part, Part::Call(_))).count();
                let mut call = answer.choices[index].calls.len() - calls;
                let mut deltas: Vec<_> = parts.iter().map(|part| delta(part, &mut call)).collect();
                if deltas.is_empty() && logprobs.is_some() {
                    deltas.push(empty());
                }
                if let (Some(first), Some(logprobs)) = (deltas.first_mut(), logprobs) {
                    first["logprobs"] = json!({"content": [logprobs]});
                }
                let chunks = deltas.into_iter().map(|delta| chunk(answer, index, CHUNK, delta));
                sent.extend(chunks.map(Sent::Data));
            }
            Update::Done(_) => sent.extend(last(answer, index, CHUNK, empty())),
        }
        sent
    }

    fn end(&self) -> Option<&'static str> {
        Some(DONE)
    }
}

impl Shape for Text {
    fn whole(&self, answer: &Answer) -> Value {
        whole(answer, TEXT, |choice| {
            let logprobs = self.logprobs.then(|| text_logprobs(&choice.logprobs));
            json!({"text": choice.content, "logprobs": logprobs})
        })
    }

    fn stream(&mut self, answer: &Answer, index: usize, update: &Update) -> Vec<Sent> {
        match update {
            Update::Prompt(now) if !answer.telling.progress => {
                vec![Sent::Comment(format!("prompt {}/{}", now.processed, now.total))]
            }
            Update::Prompt(now) => {
                let mut chunk = chunk(answer, index, TEXT, json!({"text": ""}));
                chunk["prompt_progress"] = progress(now);
                vec![Sent::Data(chunk)]
            }
            Update::Parts { parts, logprobs, .. } => {
                let text: String = parts.iter().filter_map(Part::content).collect();
                if text.is_empty() && logprobs.is_none() {
                    return Vec::new();
                }
                let mut delta = json!({"text": text});
                if let Some(logprobs) = logprobs {
                    delta["logprobs"] = text_logprobs(std::slice::from_ref(logprobs));
                }
                vec![Sent::Data(chunk(answer, index, TEXT, delta))]
            }
            Update::Done(_) => last(answer, index, TEXT, json!({"text": ""})),
        }
    }

    fn end(&self) -> Option<&'static str> {
        Some(DONE)
    }
}

const CHUNK: &str = "chat.completion.chunk";
const TEXT: &str = "text_completion";
const DONE: &str = "[DONE]";

fn head(answer: &Answer, object: &str) -> Value {
    json!({
        "id": answer.id,
        "object": object,
        "created": answer.created,
        "model": answer.model.name,
        "system_fingerprint": BUILD,
    })
}

fn whole(answer: &Answer, object: &str, of: impl Fn(&Choice) -> Value) -> Value {
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        let mut value = json!({"index": index});
        merge(&mut value, &of(choice));
        value["finish_reason"] = choice.finish().into();
        value
    });
    let mut value = head(answer, object);
    value["choices"] = choices.collect();
    value["usage"] = usage(answer);
    let first = answer.choices.first().and_then(|choice| choice.done.as_ref());
    value["timings"] = first.map(timings).into();
    value["seed"] = answer.telling.seed.into();
    value
}

/// A chunk of a choice that goes on.
fn chunk(answer: &Answer, index: usize, object: &str, delta: Value) -> Value {
    let mut value = json!({"index": index});
    merge(&mut value, &delta);
    value["finish_reason"] = Value::Null;
    let mut chunk = head(answer, object);
    chunk["choices"] = json!([value]);
    chunk
}

/// The chunks that end a choice and, if it was the last, the answer.
fn last(answer: &Answer, index: usize, object: &str, empty: Value) -> Vec<Sent> {
    let choice = &answer.choices[index];
    let mut last = chunk(answer, index, object, empty);
    last["choices"][0]["finish_reason"] = choice.finish().into();
    last["timings"] = choice.done.as_ref().map(timings).into();
    last["seed"] = answer.telling.seed.into();
    let mut sent = vec![Sent::Data(last)];
    if answer.is_done() && answer.telling.include_usage {
        let mut chunk = head(answer, object);
        chunk["choices"] = json!([]);
        chunk["usage"] = usage(answer);
        sent.push(Sent::Data(chunk));
    }
    sent
}

fn usage(answer: &Answer) -> Value {
    let usage = answer.usage();
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

/// What a part adds to a message; a call is number `call`, and the next one the next.
fn delta(part: &Part, call: &mut usize) -> Value {
    match part {
        Part::Reasoning(text) => json!({"delta": {"reasoning_content": text}}),
        Part::Content(text) => json!({"delta": {"content": text}}),
        Part::Call(found) => {
            let mut delta = json!({"index": *call});
            merge(&mut delta, &tool_call(found));
            *call += 1;
            json!({"delta": {"tool_calls": [delta]}})
        }
    }
}

fn tool_call(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn message(choice: &Choice) -> Value {
    let mut message = json!({"role": "assistant"});
    let only_calls = choice.content.is_empty() && !choice.calls.is_empty();
    message["content"] = (!only_calls).then_some(choice.content.as_str()).into();
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = choice.reasoning.as_str().into();
    }
    if !choice.calls.is_empty() {
        message["tool_calls"] = choice.calls.iter().map(tool_call).collect();
    }
    message
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

/// Copies the entries of one object into another.
fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        demo,
        generate::FinishReason,
        sample::PartialSampling,
        serve::{
            answer::{Reading, Telling},
            app::Model,
            queue::{Chosen, Event, Logprobs, Summary},
        },
        text::{ReplyOptions, Tokenizer, VocabSource},
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
        let telling = Telling { n: 1, seed: 7, include_usage: false, progress: false };
        Answer::new("chatcmpl-", Reading { reply, one_call }, Arc::new(model), 1, telling)
    }

    fn summary() -> Summary {
        Summary {
            finish: FinishReason::Stop,
            stopped_by: None,
            prompt: 5,
            cached: 2,
            generated: 9,
            prompt_time: Duration::from_millis(3),
            decode_time: Duration::ZERO,
        }
    }

    /// Feeds a reply in pieces; returns the streamed chunks and the whole.
    fn told(mut answer: Answer, text: &str) -> (Vec<Value>, Value) {
        let (mut chat, mut chunks) = (Chat::new(false), Vec::new());
        let pieces = text.as_bytes().chunks(3).map(|piece| str::from_utf8(piece).unwrap());
        let tokens = pieces
            .map(|text| Event::Token(Chosen { id: 0, text: text.to_owned(), logprobs: None }));
        for event in tokens.chain([Event::Done(summary())]) {
            for update in answer.take(0, event).unwrap() {
                chunks.extend(chat.stream(&answer, 0, &update).into_iter().map(
                    |sent| match sent {
                        Sent::Data(chunk) => chunk,
                        other => panic!("{other:?}"),
                    },
                ));
            }
        }
        assert!(answer.is_done());
        let whole = chat.whole(&answer);
        (chunks, whole)
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
        // No time has passed, and no rate is made up.
        assert_eq!(whole["timings"]["predicted_per_second"], 0.0);
    }

    #[test]
    fn one_call_is_told_where_the_client_wants_no_more() {
        let (_, whole) = told(answer(true), REPLY);
        let calls = &whole["choices"][0]["message"]["tool_calls"];
        assert_eq!(calls.as_array().unwrap().len(), 1);
        assert_eq!(calls[0]["function"]["name"], "f");
    }

    #[test]
    fn streams_keep_no_probabilities() {
        for is_streamed in [true, false] {
            let mut answer = answer(false);
            answer.is_streamed = is_streamed;
            let logprobs = Some(Logprobs { chosen: -1.0, top: vec![(1, -1.0)] });
            let token = Event::Token(Chosen { id: 1, text: "a".into(), logprobs });
            let updates = answer.take(0, token).unwrap();
            assert!(matches!(&updates[..], [Update::Parts { logprobs: Some(_), .. }]));
            assert_eq!(answer.choices[0].logprobs.is_empty(), is_streamed);
        }
    }
}
