//! From the fields of a request to jobs for the engine; what the endpoints have in common.

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{
    answer::Telling,
    app::{App, Model},
    error::ApiError,
    fields::Fields,
    queue::{Event, Full, Job},
    store,
};
use crate::{
    generate::GenerateOptions,
    sample::{Sampler, SamplingParams},
    text::Constraint,
};

/// Most prompts of one request.
const PROMPTS: usize = 64;

/// The settings of one request.
pub(super) struct Settings {
    sampling: SamplingParams,
    options: GenerateOptions,
    reuse: bool,
    slot: Option<usize>,
    session: Option<String>,
    /// Holds the answers to a grammar.
    pub(super) constraint: Option<Constraint>,
    pub(super) stream: bool,
    pub(super) telling: Telling,
}

impl Settings {
    /// Reads the fields that all endpoints share.
    pub(super) fn read(app: &App, model: &Model, fields: &mut Fields) -> Result<Self, ApiError> {
        fields.refuse_unsupported()?;
        let sampling = fields.sampling(&model.sampling, model.n_vocab)?;
        let n = fields.take::<u32>("n")?.unwrap_or(1) as usize;
        if n == 0 || n > app.slots {
            let fault = format_args!("is {n}, but must lie between 1 and {} slots", app.slots);
            return Err(ApiError::field("n", fault));
        }
        let slot = fields.take::<i64>("id_slot")?.filter(|slot| *slot != -1);
        let slot = slot.map(|slot| match usize::try_from(slot) {
            Ok(slot) if slot < app.slots => Ok(slot),
            _ => {
                let fault = format_args!("is {slot}, but there are {} slots, from 0 on", app.slots);
                Err(ApiError::field("id_slot", fault))
            }
        });
        let stream = fields.take("stream")?.unwrap_or(false);
        let mut include_usage = false;
        if let Some(options) = fields.take::<serde_json::Map<_, _>>("stream_options")? {
            let option = options.get("include_usage").cloned().unwrap_or(false.into());
            include_usage = super::fields::typed("stream_options.include_usage", option)?;
        }
        Ok(Self {
            telling: Telling {
                n,
                seed: Sampler::new(sampling.clone())?.seed(),
                include_usage,
                progress: fields.take("return_progress")?.unwrap_or(false),
            },
            sampling,
            options: fields.generation(&app.generate)?,
            reuse: fields.take("cache_prompt")?.unwrap_or(app.reuse),
            slot: slot.transpose()?,
            session: session(app, fields)?,
            constraint: None,
            stream,
        })
    }
}

impl Settings {
    /// What is in force, for clients of llama.cpp.
    pub(super) fn effective(&self) -> Value {
        let mut all = json!(self.sampling);
        all["seed"] = self.telling.seed.into();
        all["n_predict"] = self.options.max_tokens.map_or(json!(-1), Value::from);
        all["stop"] = json!(self.options.stop);
        all["ignore_eos"] = self.options.ignore_eos.into();
        all["stream"] = self.stream.into();
        all
    }
}

/// The name of the conversation, if it has one.
fn session(app: &App, fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let name = fields.take::<String>("session")?;
    if let Some(name) = &name {
        app.sessions()?;
        store::check_name("session", name)?;
    }
    Ok(name)
}

/// A prompt as it can be run, or why not.
pub(super) fn check_prompt(name: &str, prompt: &[u32], model: &Model) -> Result<(), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::field(name, "has no tokens: there is nothing to continue"));
    }
    check_vocabulary(name, prompt, model)?;
    if prompt.len() > model.context {
        return Err(ApiError::too_long(name, prompt.len(), model.context));
    }
    Ok(())
}

/// Refuses ids that the vocabulary does not have.
pub(super) fn check_vocabulary(name: &str, ids: &[u32], model: &Model) -> Result<(), ApiError> {
    let vocab = model.n_vocab;
    match ids.iter().find(|id| **id >= vocab) {
        Some(id) => {
            let fault = format_args!("names token {id}, but the vocabulary has {vocab} tokens");
            Err(ApiError::field(name, fault))
        }
        None => Ok(()),
    }
}

/// Refuses a request for more answers than can ever wait.
fn check_count(prompts: usize, n: usize, capacity: usize) -> Result<(), ApiError> {
    if prompts * n <= capacity {
        return Ok(());
    }
    let fault = format_args!(
        "holds {prompts} prompts, of n = {n} answers each, but at most {capacity} answers can wait"
    );
    Err(ApiError::field("prompt", fault))
}

/// Queues every choice of every prompt; returns their events.
pub(super) fn submit(
    app: &App,
    prompts: Vec<Vec<u32>>,
    settings: &Settings,
    logprobs: Option<usize>,
) -> Result<UnboundedReceiver<(usize, Event)>, ApiError> {
    if prompts.len() > PROMPTS {
        return Err(ApiError::field("prompt", format_args!("holds more than {PROMPTS} prompts")));
    }
    let n = settings.telling.n;
    check_count(prompts.len(), n, app.queue.capacity())?;
    let (events, receiver) = unbounded_channel();
    let mut jobs = Vec::with_capacity(prompts.len() * n);
    for prompt in prompts {
        for i in 0..n {
            // Wraps as a seed of 63 bits may be the last one.
            let seed = settings.telling.seed.wrapping_add(i as u64) & i64::MAX as u64;
            jobs.push(Job {
                choice: jobs.len(),
                prompt: prompt.clone(),
                sampling: SamplingParams { seed: seed as i64, ..settings.sampling.clone() },
                options: settings.options.clone(),
                constraint: settings.constraint.clone(),
                logprobs,
                reuse: settings.reuse,
                slot: settings.slot,
                session: settings.session.clone(),
                events: events.clone(),
            });
        }
    }
    let full = |Full| ApiError::unavailable("all slots are busy and the queue is full");
    app.queue.push(jobs).map_err(full)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::check_count;

    #[test]
    fn more_answers_than_can_ever_wait_are_refused() {
        assert!(check_count(4, 2, 8).is_ok());
        let error = check_count(5, 2, 8).unwrap_err().body();
        assert_eq!(error["error"]["param"], "prompt");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
}
