//! What a client is told when a request cannot be served, in the form of OpenAI's API.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::http;
use crate::Error;

/// An error with its HTTP status.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// The field of the request that is at fault.
    param: Option<String>,
    code: Option<&'static str>,
    /// Prompt and context, in tokens, when one does not fit the other.
    tokens: Option<(usize, usize)>,
}

/// Seconds after which a client may try again when the queue is full.
const RETRY_AFTER: &str = "2";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, tokens: None }
    }

    /// The request as a whole is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// One field of the request is wrong; the message names it.
    pub(super) fn field(name: impl Into<String>, fault: impl std::fmt::Display) -> Self {
        let name = name.into();
        Self { param: Some(name.clone()), ..Self::invalid(format!("{name} {fault}")) }
    }

    /// A sampling parameter is out of range, whose name begins the message.
    pub(super) fn parameter(error: Error) -> Self {
        let message = error.to_string();
        let name = message.split(' ').next().map(str::to_owned);
        Self { param: name, ..Self::invalid(message) }
    }

    /// The request has the wrong media type, size or method.
    pub(super) fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// The prompt is longer than the context.
    pub(super) fn too_long(param: &str, prompt: usize, context: usize) -> Self {
        let message =
            format!("{param}: the prompt has {prompt} tokens, the context holds {context}");
        Self {
            param: Some(param.into()),
            code: Some("context_length_exceeded"),
            tokens: Some((prompt, context)),
            ..Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message)
        }
    }

    pub(super) fn unauthorized() -> Self {
        let message = "Invalid API Key: send one as Authorization: Bearer KEY";
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    pub(super) fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", format!("there is no {path}"))
    }

    /// A route that other servers have.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// No slot or no model yet; the client may try again.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The engine or the server failed.
    pub(super) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The object that is sent.
    pub(super) fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        });
        if let Some((prompt, context)) = self.tokens {
            error["n_prompt_tokens"] = prompt.into();
            error["n_ctx"] = context.into();
        }
        json!({"error": error})
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            // What the request has caused: the template's own sentence, a parameter out of range,
            // settings that leave no token, a file that does not fit.
            Error::Template(_)
            | Error::Usage(_)
            | Error::Context(_)
            | Error::Sampling(_)
            | Error::Session { .. } => Self::invalid(error.to_string()),
            _ => Self::server(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = http::json(&self.body());
        *response.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        response
    }
}
