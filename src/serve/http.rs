//! Bodies of requests and responses.

use std::{future::poll_fn, pin::Pin, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_core::Stream;
use serde_json::Value;

use super::{
    app::{App, Model},
    error::ApiError,
    fields::Fields,
};

/// Most bytes of a request: a million tokens of text have about four million.
const LIMIT: usize = 16 << 20;

/// Most bytes that are read to be thrown away: clients see no answer before they have sent all.
const DISCARDED: usize = 4 * LIMIT;

/// The body of a JSON request.
///
/// The media type has to be named: browsers send any other to foreign servers without asking.
async fn read(request: Request) -> Result<Vec<u8>, ApiError> {
    let (head, body) = request.into_parts();
    let mut parts = body.into_data_stream();
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(part) = poll_fn(|cx| Pin::new(&mut parts).poll_next(cx)).await {
        let part = part.map_err(|e| ApiError::invalid(format!("the body cannot be read: {e}")))?;
        length += part.len();
        if length > DISCARDED {
            break;
        }
        match length > LIMIT {
            true => bytes.clear(),
            false => bytes.extend_from_slice(&part),
        }
    }
    check_type(&head.headers)?;
    if length > LIMIT {
        let message = format!("the body is larger than {LIMIT} bytes");
        return Err(ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    Ok(bytes)
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
    let essence = given.map(|text| text.split(';').next().unwrap_or_default().trim());
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message =
        format!("Content-Type has to be application/json, but is {}", given.unwrap_or("missing"));
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Refuses a request, whose body is of no interest, that a browser may have sent for any page
/// without asking: of another media type, or of none, but with the name of the page.
pub(super) fn check_sender(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_bare = !headers.contains_key(header::CONTENT_TYPE);
    match is_bare && !headers.contains_key(header::ORIGIN) {
        true => Ok(()),
        false => check_type(headers),
    }
}

/// A response of JSON.
pub(super) fn json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(value.to_string())).into_response()
}

/// Does `work` with the fields of a JSON request, where no other request has to wait for it.
pub(super) async fn work<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    work: impl FnOnce(&App, &Arc<Model>, Fields) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let model = app.model()?;
    let body = read(request).await?;
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || work(&app, &model, Fields::parse(&body)?)).await;
    done.unwrap_or_else(|_| Err(ApiError::server("the request could not be processed")))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn what_pages_can_send_unasked_is_refused() {
        let check = |headers: &[(HeaderName, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            check_sender(&headers.collect()).is_ok()
        };
        let (kind, origin) = (header::CONTENT_TYPE, (header::ORIGIN, "https://evil.example"));
        assert!(check(&[]), "curl -X POST");
        let json = (kind.clone(), "application/json; charset=utf-8");
        assert!(check(std::slice::from_ref(&json)) && check(&[json, origin.clone()]));
        assert!(!check(std::slice::from_ref(&origin)), "fetch without a body");
        for form in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            assert!(!check(&[(kind.clone(), form)]), "{form}");
        }
    }
}
