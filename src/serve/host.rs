//! Whom a browser thinks it is asking. A page from anywhere may send requests to a name that its
//! owner lets point to 127.0.0.1; the browser then takes this server for the page's own and shows
//! it the answers (DNS rebinding). So a server for this machine alone answers only to names that
//! nobody else can own.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{app::App, error::ApiError};

/// Lets requests through that ask for this machine by its address or as `localhost`; all, where a
/// key or the network decides who may ask.
pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let asked = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match asked.or(request.uri().authority().map(Authority::as_str)) {
        Some(host) if app.local && !is_local(host) => {
            let message = "Host: this server is for this machine alone and answers as localhost or by \
                           its address; with --api-key it answers to every name";
            ApiError::refused(StatusCode::FORBIDDEN, message).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether `host`, with or without a port, is an address or `localhost`.
fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_names_that_nobody_can_own_are_local() {
        for host in
            ["localhost", "LocalHost:80", "a.localhost:1", "127.0.0.1:8080", "[::1]:8080", "[::1]"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "a b",
            ":80",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
