//! What every route sees, and the table of routes.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{
    chat, completion, conversations,
    error::ApiError,
    host, info, native, page,
    queue::{Action, Full, Moved, Order, Queue},
    responses, slots,
    status::Status,
};
use crate::{
    generate::GenerateOptions,
    sample::PartialSampling,
    text::{ChatTemplate, Constraint, Constraints, Grammar, RenderOptions, Thinking, Tokenizer},
};

/// What every route sees.
pub(super) struct App {
    /// Empty: everybody may ask.
    pub(super) keys: Vec<String>,
    /// For this machine alone, without a key.
    pub(super) local: bool,
    pub(super) slots: usize,
    pub(super) queue: Arc<Queue>,
    pub(super) status: Arc<Status>,
    pub(super) generate: GenerateOptions,
    pub(super) render: RenderOptions,
    pub(super) reuse: bool,
    /// The directory of sessions.
    pub(super) sessions: Option<PathBuf>,
    /// Silence after which a stream sends a comment.
    pub(super) ping: Option<Duration>,
    /// There while it is loaded.
    pub(super) model: Mutex<Option<Arc<Model>>>,
}

/// The model, as far as text goes.
pub(super) struct Model {
    pub(super) name: String,
    /// When it was loaded, in seconds since 1970.
    pub(super) created: u64,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Option<Arc<ChatTemplate>>,
    pub(super) sampling: PartialSampling,
    /// Compiles grammars; made when the first request needs it.
    pub(super) constraints: OnceLock<Result<Constraints, String>>,
    pub(super) context: usize,
    pub(super) n_vocab: u32,
    pub(super) meta: Value,
}

impl App {
    /// The model, or the answer that it is not loaded yet, or not any more.
    pub(super) fn model(&self) -> Result<Arc<Model>, ApiError> {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).clone();
        model.ok_or_else(|| match self.status.now().failures {
            0 => ApiError::unavailable("Loading model"),
            _ => ApiError::unavailable("Loading model again: the device has failed"),
        })
    }

    /// The directory of sessions, or the answer that there is none.
    pub(super) fn sessions(&self) -> Result<&Path, ApiError> {
        self.sessions.as_deref().ok_or_else(|| {
            ApiError::unsupported("nothing is saved: start the server with --session-dir")
        })
    }

    /// Has the engine's thread do something about sessions.
    pub(super) async fn order(&self, what: Action) -> Result<Moved, ApiError> {
        self.model()?;
        let (done, moved) = oneshot::channel();
        let full = |Full| ApiError::unavailable("too many orders wait");
        self.queue.order(Order { what, done }).map_err(full)?;
        let gone = |_| ApiError::server("the engine has stopped");
        Ok(moved.await.map_err(gone)??)
    }

    /// Puts the model in, or takes it out.
    pub(super) fn set_model(&self, model: Option<Arc<Model>>) {
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = model;
    }
}

impl Model {
    /// The constraint of `grammar`, which stood in `field`.
    pub(super) fn constrain(
        &self,
        (field, grammar): &(String, Grammar),
        thinking: Thinking,
    ) -> Result<Constraint, ApiError> {
        let made = || Constraints::new(&self.tokenizer).map_err(|e| e.to_string());
        let constraints = self.constraints.get_or_init(made).as_ref().map_err(ApiError::server)?;
        constraints.compile(grammar, thinking).map_err(|e| ApiError::field(field, e))
    }
}

/// The routes.
pub(super) fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completion::complete))
        .route("/completion", post(native::complete))
        .route("/completions", post(native::complete))
        .route("/v1/responses", post(responses::create))
        .route("/v1/chat/completions/input_tokens", post(chat::count))
        .route("/v1/models", get(info::models))
        .route("/models", get(info::models))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .route("/apply-template", post(chat::apply_template))
        .route("/props", get(info::props))
        .route("/v1/embeddings", any(info::unsupported))
        .route("/embeddings", any(info::unsupported))
        .route("/v1/rerank", any(info::unsupported))
        .route("/infill", any(info::unsupported))
        .route("/slots", get(info::slots))
        .route("/slots/{id}", post(slots::act))
        .route("/conversations", get(conversations::list))
        .route(
            "/conversations/{id}",
            get(conversations::show).put(conversations::keep).delete(conversations::forget),
        )
        .route("/metrics", get(info::metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), authorize));
    Router::new()
        .route("/health", get(info::health))
        .route("/v1/health", get(info::health))
        .route("/openapi.json", get(info::description))
        .merge(page::routes())
        .method_not_allowed_fallback(wrong_method)
        .merge(guarded)
        .layer(middleware::from_fn_with_state(app.clone(), host::check))
        .with_state(app)
}

async fn unknown(request: Request) -> ApiError {
    ApiError::not_found(request.uri().path())
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Lets requests with one of the keys through.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.is_empty() || has_key(&app.keys, request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

fn has_key(keys: &[String], headers: &HeaderMap) -> bool {
    let header = |name| headers.get(name).map(HeaderValue::as_bytes);
    let bearer = header(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    let given = bearer.or(header("x-api-key")).unwrap_or_default();
    keys.iter().fold(false, |known, key| known | same(key.as_bytes(), given))
}

/// Compares in a time that does not tell where the first difference is.
fn same(key: &[u8], given: &[u8]) -> bool {
    let differences = key.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
    key.len() == given.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn keys_have_to_be_equal() {
        assert!(same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!same(b"abc", other));
        }
    }
}
