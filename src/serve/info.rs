//! Routes that tell about the server, the model and tokens (spec/cli-and-server.md 4.3).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{app::App, error::ApiError, http, request};
use crate::text::EncodeOptions;

/// The program and its version.
pub(super) const BUILD: &str = concat!("engine-", env!("CARGO_PKG_VERSION"));

/// Whether requests can be served.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.model()?;
    Ok(http::json(&json!({"status": "ok"})))
}

/// The description of the routes, for programs that make clients or tests of it.
pub(super) async fn description() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, include_str!("openapi.json")).into_response()
}

/// Refuses what other servers have.
pub(super) async fn unsupported(request: Request) -> ApiError {
    let message = format!("{} is not supported by this server", request.uri().path());
    ApiError::unsupported(message)
}

/// The one model.
pub(super) async fn models(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model()?;
    let entry = json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "engine",
        "meta": model.meta,
    });
    Ok(http::json(&json!({"object": "list", "data": [entry]})))
}

/// What the server is, how it answers where requests do not say, and what memory it takes.
pub(super) async fn props(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model()?;
    let template = model.template.as_ref().map(|template| template.source());
    Ok(http::json(&json!({
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": model.sampling.clone().or_default(),
        },
        "total_slots": app.slots,
        "model_alias": model.name,
        "model_path": model.name,
        "chat_template": template.unwrap_or_default(),
        "chat_template_caps": {"supports_tools": template.is_some_and(|t| t.contains("tools"))},
        "modalities": {"vision": false, "audio": false},
        "build_info": BUILD,
        "is_sleeping": false,
        "keeps_conversations": app.sessions.is_some(),
        "memory": app.status.now().memory,
    })))
}

/// What each slot does.
pub(super) async fn slots(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let context = app.model()?.context;
    let slots = app.status.now().slots;
    let slot = |(id, slot): (usize, &super::status::SlotStatus)| {
        json!({
            "id": id,
            "id_task": slot.task,
            "n_ctx": context,
            "speculative": false,
            "is_processing": slot.is_processing,
            "n_tokens": slot.held,
        })
    };
    Ok(http::json(&slots.iter().enumerate().map(slot).collect::<Value>()))
}

/// Counters for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.status.now().metrics(app.queue.len())).into_response()
}

/// Text to token ids.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let tokens = http::work(&app, request, |_, model, mut fields| {
        let text = fields.require::<String>("content")?;
        let options = EncodeOptions {
            add_special: fields.take("add_special")?.unwrap_or(false),
            parse_special: fields.take("parse_special")?.unwrap_or(true),
        };
        let pieces = fields.take("with_pieces")?.unwrap_or(false);
        let ids = model.tokenizer.encode(&text, options)?;
        let piece = |id: u32| {
            let bytes = model.tokenizer.piece(id, true);
            // Parts of characters are no text.
            let piece = str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
            json!({"id": id, "piece": piece})
        };
        Ok(if pieces { ids.into_iter().map(piece).collect() } else { json!(ids) })
    });
    Ok(http::json(&json!({"tokens": tokens.await?})))
}

/// Token ids to text.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let text = http::work(&app, request, |_, model, mut fields| {
        let tokens = fields.require::<Vec<u32>>("tokens")?;
        request::check_vocabulary("tokens", &tokens, model)?;
        Ok(model.tokenizer.decode(&tokens, true))
    });
    Ok(http::json(&json!({"content": text.await?})))
}
