//! `/v1/completions` (spec/cli-and-server.md 4.2).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::Value;

use super::{
    answer::{Answer, Reading},
    app::{App, Model},
    error::ApiError,
    fields::{Fields, TOP_LOGPROBS, typed},
    format, http,
    openai::Text,
    request::{self, Settings},
    stream::{self, Started},
};
use crate::text::{EncodeOptions, Thinking};

/// Continues texts.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let started = http::work(&app, request, start).await?;
    stream::respond(started, app.ping).await
}

fn start(app: &App, model: &Arc<Model>, mut fields: Fields) -> Result<Started, ApiError> {
    let mut settings = Settings::read(app, model, &mut fields)?;
    if let Some(grammar) = format::read(&mut fields)? {
        settings.constraint = Some(model.constrain(&grammar, Thinking::Never)?);
    }
    let logprobs = fields.take::<u32>("logprobs")?.map(|top| top as usize);
    if logprobs.is_some_and(|top| top > TOP_LOGPROBS) {
        return Err(ApiError::field("logprobs", format_args!("may be {TOP_LOGPROBS} at most")));
    }
    let logprobs = logprobs.or(fields.n_probs()?);
    let prompts = prompts(fields.require("prompt")?, model)?;
    for (i, prompt) in prompts.iter().enumerate() {
        let name = if prompts.len() == 1 { "prompt".into() } else { format!("prompt[{i}]") };
        request::check_prompt(&name, prompt, model)?;
    }
    let choices = prompts.len() * settings.telling.n;
    let shape = Box::new(Text { logprobs: logprobs.is_some() });
    let events = request::submit(app, prompts, &settings, logprobs)?;
    let Settings { telling, stream, .. } = settings;
    let answer = Answer::new("cmpl-", Reading::default(), model.clone(), choices, telling);
    Ok(Started { events, answer, shape, stream })
}

/// A text, token ids, or a list of either.
fn prompts(prompt: Value, model: &Model) -> Result<Vec<Vec<u32>>, ApiError> {
    match prompt {
        Value::Array(list) if list.is_empty() => Err(ApiError::field("prompt", "is empty")),
        Value::Array(list) if !list[0].is_number() => {
            let named = list.into_iter().enumerate();
            named.map(|(i, prompt)| one(&format!("prompt[{i}]"), prompt, model)).collect()
        }
        prompt => Ok(vec![one("prompt", prompt, model)?]),
    }
}

fn one(name: &str, prompt: Value, model: &Model) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Value::String(text) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            Ok(model.tokenizer.encode(&text, options)?)
        }
        Value::Array(_) => typed(name, prompt),
        _ => Err(ApiError::field(name, "is neither a text nor a list of token ids")),
    }
}
