//! An answer in the shape of OpenAI's Responses: items of output, and events that build them.

use serde_json::{Value, json};

use super::answer::{Answer, Call, Part, Sent, Shape, Update, random_id};
use super::error::ApiError;
use crate::generate::FinishReason;

/// What the request asked for, which the answer repeats.
pub(super) struct Asked {
    pub(super) instructions: Option<String>,
    pub(super) tools: Vec<Value>,
    pub(super) tool_choice: Value,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) parallel: bool,
}

/// The state of a stream.
pub(super) struct Responses {
    asked: Asked,
    /// Events sent so far.
    sequence: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Open>,
}

/// The item that text is added to.
struct Open {
    id: String,
    thinking: bool,
    text: String,
}

impl Open {
    fn item(&self, status: &str) -> Value {
        let Self { id, thinking, text } = self;
        match thinking {
            true => json!({
                "type": "reasoning", "id": id, "summary": [], "status": status,
                "content": [{"type": "reasoning_text", "text": text}],
            }),
            false => json!({
                "type": "message", "id": id, "role": "assistant", "status": status,
                "content": [output_text(text)],
            }),
        }
    }
}

fn output_text(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn call_item(call: &Call, arguments: &str, status: &str) -> Value {
    json!({
        "type": "function_call", "id": call.id.replacen("call_", "fc_", 1), "call_id": call.id,
        "name": call.name, "arguments": arguments, "status": status,
    })
}

impl Responses {
    pub(super) fn new(asked: Asked) -> Self {
        Self { asked, sequence: 0, output: Vec::new(), open: None }
    }

    fn response(&self, answer: &Answer, output: Value) -> Value {
        let done = answer.choices.first().and_then(|choice| choice.done.as_ref());
        let cut = done.is_some_and(|done| done.finish == FinishReason::Length);
        let status = match done {
            None => "in_progress",
            Some(_) if cut => "incomplete",
            Some(_) => "completed",
        };
        let usage = answer.usage();
        let thought: usize = answer.choices.iter().map(|choice| choice.thought).sum();
        let usage = done.map(|_| {
            json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.generated,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": usage.prompt + usage.generated,
            })
        });
        let asked = &self.asked;
        json!({
            "id": answer.id,
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "error": null,
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": answer.model.name,
            "output": output,
            "parallel_tool_calls": asked.parallel,
            "previous_response_id": null,
            "store": false,
            "tool_choice": asked.tool_choice,
            "tools": asked.tools,
            "truncation": "disabled",
            "usage": usage,
            "metadata": {},
        })
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Sent {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Sent::Event(fields)
    }

    fn added(&mut self, item: Value) -> Sent {
        let fields = json!({"output_index": self.output.len(), "item": item});
        self.event("response.output_item.added", fields)
    }

    fn finished(&mut self, item: Value) -> Sent {
        let fields = json!({"output_index": self.output.len(), "item": item});
        self.output.push(item);
        self.event("response.output_item.done", fields)
    }

    /// Adds text to the open item, of a new one if there is none of its kind.
    fn text(&mut self, text: &str, thinking: bool, sent: &mut Vec<Sent>) {
        if self.open.as_ref().is_none_or(|open| open.thinking != thinking) {
            self.close(sent);
            let id = random_id(if thinking { "rs_" } else { "msg_" });
            let open = Open { id, thinking, text: String::new() };
            let mut item = open.item("in_progress");
            item["content"] = json!([]);
            sent.push(self.added(item));
            if !thinking {
                let fields = self.place(&open.id, json!({"part": output_text("")}));
                sent.push(self.event("response.content_part.added", fields));
            }
            self.open = Some(open);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let id = open.id.clone();
        let kind =
            if thinking { "response.reasoning_text.delta" } else { "response.output_text.delta" };
        let mut fields = self.place(&id, json!({"delta": text}));
        if !thinking {
            fields["logprobs"] = json!([]);
        }
        sent.push(self.event(kind, fields));
    }

    /// Ends the open item.
    fn close(&mut self, sent: &mut Vec<Sent>) {
        let Some(open) = self.open.take() else { return };
        let mut fields = self.place(&open.id, json!({"text": open.text}));
        if open.thinking {
            sent.push(self.event("response.reasoning_text.done", fields));
        } else {
            fields["logprobs"] = json!([]);
            sent.push(self.event("response.output_text.done", fields));
            let fields = self.place(&open.id, json!({"part": output_text(&open.text)}));
            sent.push(self.event("response.content_part.done", fields));
        }
        sent.push(self.finished(open.item("completed")));
    }

    fn call(&mut self, call: &Call, sent: &mut Vec<Sent>) {
        self.close(sent);
        let item = call_item(call, "", "in_progress");
        let place = json!({"item_id": item["id"], "output_index": self.output.len()});
        sent.push(self.added(item));
        let with = |name: &str| {
            let mut fields = place.clone();
            fields[name] = call.arguments.as_str().into();
            fields
        };
        sent.push(self.event("response.function_call_arguments.delta", with("delta")));
        sent.push(self.event("response.function_call_arguments.done", with("arguments")));
        sent.push(self.finished(call_item(call, &call.arguments, "completed")));
    }

    /// Where in the output an event belongs.
    fn place(&self, id: &str, mut fields: Value) -> Value {
        fields["item_id"] = id.into();
        fields["output_index"] = self.output.len().into();
        fields["content_index"] = 0.into();
        fields
    }
}

impl Shape for Responses {
    fn whole(&self, answer: &Answer) -> Value {
        let [choice] = answer.choices.as_slice() else { return Value::Null };
        let mut output = Vec::new();
        for (text, thinking, prefix) in
            [(&choice.reasoning, true, "rs_"), (&choice.content, false, "msg_")]
        {
            if !text.is_empty() || (!thinking && choice.calls.is_empty()) {
                let open = Open { id: random_id(prefix), thinking, text: text.clone() };
                output.push(open.item("completed"));
            }
        }
        output
            .extend(choice.calls.iter().map(|call| call_item(call, &call.arguments, "completed")));
        self.response(answer, output.into())
    }

    fn stream(&mut self, answer: &Answer, _: usize, update: &Update) -> Vec<Sent> {
        let mut sent = Vec::new();
        if self.sequence == 0 {
            for kind in ["response.created", "response.in_progress"] {
                let response = self.response(answer, json!([]));
                sent.push(self.event(kind, json!({"response": response})));
            }
        }
        match update {
            Update::Prompt(now) => {
                sent.push(Sent::Comment(format!("prompt {}/{}", now.processed, now.total)));
            }
            Update::Parts { parts, .. } => {
                for part in parts {
                    match part {
                        Part::Reasoning(text) => self.text(text, true, &mut sent),
                        Part::Content(text) => self.text(text, false, &mut sent),
                        Part::Call(call) => self.call(call, &mut sent),
                    }
                }
            }
            Update::Done(summary) => {
                self.close(&mut sent);
                let response = self.response(answer, self.output.clone().into());
                let kind = match summary.finish {
                    FinishReason::Length => "response.incomplete",
                    _ => "response.completed",
                };
                sent.push(self.event(kind, json!({"response": response})));
            }
        }
        sent
    }

    fn error(&self, error: &ApiError) -> Sent {
        let body = error.body();
        Sent::Event(json!({
            "type": "error", "sequence_number": self.sequence, "code": body["error"]["type"],
            "message": body["error"]["message"], "param": body["error"]["param"],
        }))
    }
}
