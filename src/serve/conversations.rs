//! `/conversations`: what the page keeps of conversations, as text, beside the session files. The
//! server reads nothing of it but title and time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    extract::{self, Request, State},
    response::Response,
};
use serde_json::{Value, json};

use super::{app::App, error::ApiError, http, queue::Action, store};
use crate::{Error, replace::Replacement};

/// All, the newest first, without their messages.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let folder = folder(&app)?;
    let mut all = blocking(move || {
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(folder, error).into()),
        };
        let about = |path: PathBuf| {
            let id = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
            let value: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            Some(json!({"id": id, "title": value["title"], "changed": value["changed"]}))
        };
        Ok(files.flatten().filter_map(|file| about(file.path())).collect::<Vec<_>>())
    })
    .await?;
    all.sort_by(|a, b| {
        let changed = |value: &Value| value["changed"].as_f64().unwrap_or(0.0);
        changed(b).total_cmp(&changed(a))
    });
    Ok(http::json(&json!({"conversations": all})))
}

/// One.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    extract::Path(id): extract::Path<String>,
) -> Result<Response, ApiError> {
    let path = path(&app, &id)?;
    let text = blocking(move || match fs::read(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ApiError::not_found(&format!("conversation {id}")))
        }
        Err(error) => Err(Error::io(path, error).into()),
    });
    let value: Value = serde_json::from_slice(&text.await?)
        .map_err(|e| ApiError::server(format!("the conversation is damaged: {e}")))?;
    Ok(http::json(&value))
}

/// Keeps one, in place of what was there.
pub(super) async fn keep(
    State(app): State<Arc<App>>,
    extract::Path(id): extract::Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let path = path(&app, &id)?;
    http::work(&app, request, move |_, _, fields| {
        let folder = path.parent().unwrap_or(Path::new("."));
        let text = Value::Object(fields.into_inner()).to_string();
        let written = fs::create_dir_all(folder).map_err(|e| Error::io(folder, e));
        written.and_then(|()| Replacement::private(&path)?.finish_with(text.as_bytes()))?;
        Ok(())
    })
    .await?;
    Ok(http::json(&json!({"id": id})))
}

/// Forgets one, and the session that was made of it.
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    extract::Path(id): extract::Path<String>,
) -> Result<Response, ApiError> {
    let path = path(&app, &id)?;
    blocking(move || match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(path, error).into()),
        _ => Ok(()),
    })
    .await?;
    app.order(Action::Forget(id.clone())).await?;
    Ok(http::json(&json!({"id": id})))
}

fn folder(app: &App) -> Result<PathBuf, ApiError> {
    Ok(app.sessions()?.join(store::CONVERSATIONS))
}

fn path(app: &App, id: &str) -> Result<PathBuf, ApiError> {
    store::check_name("id", id)?;
    Ok(folder(app)?.join(format!("{id}.json")))
}

/// Does `work` where no other request has to wait for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::server("the request could not be processed")))
}
