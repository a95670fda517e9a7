//! The page at `/`, part of the program: a conversation in the browser, without any other host.

use axum::{
    Router,
    http::{HeaderValue, header},
    response::IntoResponse,
    routing::get,
};

/// Path, media type and content. Paths are relative, so that the page works behind a prefix.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/app.js", SCRIPT, include_str!("page/app.js")),
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/messages.js", SCRIPT, include_str!("page/messages.js")),
    ("/markdown.js", SCRIPT, include_str!("page/markdown.js")),
    ("/store.js", SCRIPT, include_str!("page/store.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing but these files and the server itself, whatever a model might slip in.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's routes, which need no key: it asks for one.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(async move || send(kind, content)))
    })
}

fn send(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the program has a new page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), content)
}
