//! `/completion`, llama.cpp's own way to ask and to tell (spec/cli-and-server.md 4.2).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::{Value, json};

use super::{
    answer::{Answer, Choice, Part, Reading, Sent, Shape, Update, progress, timings},
    app::{App, Model},
    error::ApiError,
    fields::{Fields, typed},
    format, http,
    request::{self, Settings},
    stream::{self, Started},
};
use crate::{
    generate::FinishReason,
    text::{EncodeOptions, Thinking},
};

/// Continues a text.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let started = http::work(&app, request, start).await?;
    stream::respond(started, app.ping).await
}

fn start(app: &App, model: &Arc<Model>, mut fields: Fields) -> Result<Started, ApiError> {
    let mut settings = Settings::read(app, model, &mut fields)?;
    if settings.telling.n != 1 {
        return Err(ApiError::field("n", "may only be 1 here"));
    }
    if let Some(grammar) = format::read(&mut fields)? {
        settings.constraint = Some(model.constrain(&grammar, Thinking::Never)?);
    }
    let probabilities = fields.n_probs()?;
    let prompt = prompt(fields.require("prompt")?, model)?;
    request::check_prompt("prompt", &prompt, model)?;
    let shape = Box::new(Native {
        prompt: model.tokenizer.decode(&prompt, true),
        settings: settings.effective(),
        tokens: fields.take("return_tokens")?.unwrap_or(false),
        probabilities: probabilities.is_some(),
    });
    let events = request::submit(app, vec![prompt], &settings, probabilities)?;
    let Settings { telling, stream, .. } = settings;
    let answer = Answer::new("cmpl-", Reading::default(), model.clone(), 1, telling);
    Ok(Started { events, answer, shape, stream })
}

/// A text, token ids, or a mixture of both, one behind the other.
fn prompt(prompt: Value, model: &Model) -> Result<Vec<u32>, ApiError> {
    let encode = |text: &str, add_special| {
        model.tokenizer.encode(text, EncodeOptions { add_special, parse_special: true })
    };
    match prompt {
        Value::String(text) => Ok(encode(&text, true)?),
        Value::Array(parts) => {
            let mut ids = Vec::with_capacity(parts.len());
            for (i, part) in parts.into_iter().enumerate() {
                match part {
                    Value::String(text) => ids.extend(encode(&text, i == 0)?),
                    part => ids.push(typed(&format!("prompt[{i}]"), part)?),
                }
            }
            Ok(ids)
        }
        _ => Err(ApiError::field("prompt", "is neither a text nor a list of token ids and texts")),
    }
}

/// llama.cpp's shape.
struct Native {
    prompt: String,
    settings: Value,
    /// Ids are told beside the text.
    tokens: bool,
    probabilities: bool,
}

impl Native {
    /// All that is known in the end; `content` and `tokens` are those that are still to be told.
    fn last(&self, answer: &Answer, choice: &Choice, content: &str, tokens: &[u32]) -> Value {
        let usage = answer.usage();
        let done = choice.done.as_ref();
        let mut value = json!({
            "index": 0,
            "content": content,
            "tokens": if self.tokens { tokens } else { &[] },
            "stop": true,
            "model": answer.model.name,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.cached,
            "generation_settings": self.settings,
            "prompt": self.prompt,
            "truncated": false,
            "stop_type": match done.map(|done| (done.finish, &done.stopped_by)) {
                Some((FinishReason::Stop, Some(_))) => "word",
                Some((FinishReason::Stop, None)) => "eos",
                Some((FinishReason::Length, _)) => "limit",
                _ => "none",
            },
            "stopping_word": done.and_then(|done| done.stopped_by.as_deref()).unwrap_or_default(),
            "timings": done.map(timings),
            "seed": answer.telling.seed,
        });
        if self.probabilities && !answer.is_streamed {
            value["completion_probabilities"] = choice.logprobs.clone().into();
        }
        value
    }
}

impl Shape for Native {
    fn whole(&self, answer: &Answer) -> Value {
        let [choice] = answer.choices.as_slice() else { return Value::Null };
        self.last(answer, choice, &choice.content, &choice.tokens)
    }

    fn stream(&mut self, answer: &Answer, index: usize, update: &Update) -> Vec<Sent> {
        vec![match update {
            Update::Prompt(now) if !answer.telling.progress => {
                Sent::Comment(format!("prompt {}/{}", now.processed, now.total))
            }
            Update::Prompt(now) => Sent::Data(json!({
                "index": 0, "content": "", "tokens": [], "stop": false,
                "prompt_progress": progress(now),
            })),
            Update::Parts { token: None, parts, .. } if parts.is_empty() => return Vec::new(),
            Update::Parts { token, parts, logprobs } => {
                let content: String = parts.iter().filter_map(Part::content).collect();
                let tokens: Vec<u32> = token.iter().copied().collect();
                let mut value =
                    json!({"index": 0, "content": content, "tokens": tokens, "stop": false});
                if let Some(logprobs) = logprobs {
                    value["completion_probabilities"] = json!([logprobs]);
                }
                Sent::Data(value)
            }
            Update::Done(_) => Sent::Data(self.last(answer, &answer.choices[index], "", &[])),
        }]
    }
}
