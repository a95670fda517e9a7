//! `/slots/{id}?action=save|restore|erase`, as llama-server has it (spec/cli-and-server.md 4.3).

use std::sync::Arc;

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use serde_json::json;

use super::{
    answer::millis,
    app::App,
    error::ApiError,
    http,
    queue::{Action, Moved},
    store,
};

/// Saves, restores or erases what a slot holds.
pub(super) async fn act(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let slots = app.slots;
    let slot = id.parse().ok().filter(|slot| *slot < slots).ok_or_else(|| {
        let fault = format_args!("is {id}, but there are {slots} slots, from 0 on");
        ApiError::field("id_slot", fault)
    })?;
    let query = request.uri().query().unwrap_or_default().to_owned();
    let action = query.split('&').find_map(|pair| pair.strip_prefix("action=")).unwrap_or_default();
    if action == "erase" {
        http::check_sender(request.headers())?;
        let Moved { tokens, .. } = app.order(Action::Erase(slot)).await?;
        return Ok(http::json(&json!({"id_slot": slot, "n_erased": tokens})));
    }
    let order = match action {
        "save" => Action::Save,
        "restore" => Action::Restore,
        _ => return Err(ApiError::field("action", "has to be save, restore or erase")),
    };
    app.sessions()?;
    let name = http::work(&app, request, |_, _, mut fields| {
        let name = fields.require::<String>("filename")?;
        store::check_file("filename", &name)?;
        Ok(name)
    });
    let name = name.await?;
    if action == "restore" && !app.sessions()?.join(&name).exists() {
        return Err(ApiError::not_found(&format!("session {name}")));
    }
    let Moved { tokens, bytes, time } = app.order(order(slot, name.clone())).await?;
    let ms = millis(time);
    Ok(http::json(&match action {
        "save" => json!({
            "id_slot": slot, "filename": name, "n_saved": tokens, "n_written": bytes,
            "timings": {"save_ms": ms},
        }),
        _ => json!({
            "id_slot": slot, "filename": name, "n_restored": tokens, "n_read": bytes,
            "timings": {"restore_ms": ms},
        }),
    }))
}
