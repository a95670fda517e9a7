//! `/v1/chat/completions` (spec/cli-and-server.md 4.1).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, Reading, Shape},
    app::{App, Model},
    error::ApiError,
    fields::{Fields, TOP_LOGPROBS},
    format, http, messages,
    openai::Chat,
    request::{self, Settings},
    stream::{self, Started},
    tools::Tools,
};
use crate::text::{
    ChatTemplate, EncodeOptions, Message, RenderOptions, ReplyOptions, Thinking, opens_thinking,
};

/// A template brings its own special tokens.
const TOKENS: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

/// Answers a conversation.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let started = http::work(&app, request, start).await?;
    stream::respond(started, app.ping).await
}

/// How many tokens a conversation becomes.
pub(super) async fn count(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let count = http::work(&app, request, |app, model, mut fields| {
        let tools = Tools::read(&mut fields)?.offered;
        let text = Conversation::read(app, &mut fields, tools)?.render(template(model)?)?;
        Ok(model.tokenizer.encode(&text, TOKENS)?.len())
    });
    Ok(http::json(&json!({"object": "response.input_tokens", "input_tokens": count.await?})))
}

/// The prompt that a conversation becomes.
pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let prompt = http::work(&app, request, |app, model, mut fields| {
        let tools = Tools::read(&mut fields)?.offered;
        Conversation::read(app, &mut fields, tools)?.render(template(model)?)
    });
    Ok(http::json(&json!({"prompt": prompt.await?})))
}

fn start(app: &App, model: &Arc<Model>, fields: Fields) -> Result<Started, ApiError> {
    begin(app, model, fields, "chatcmpl-", |logprobs| Box::new(Chat::new(logprobs)))
}

/// Starts the answer to a conversation, whose id begins with `prefix` and which is told in the
/// shape of `shape`, with probabilities or without.
pub(super) fn begin(
    app: &App,
    model: &Arc<Model>,
    mut fields: Fields,
    prefix: &str,
    shape: impl FnOnce(bool) -> Box<dyn Shape>,
) -> Result<Started, ApiError> {
    let mut settings = Settings::read(app, model, &mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    let thinking = splits_reasoning(&mut fields)?;
    let tools = Tools::read(&mut fields)?;
    let grammar = tools.grammar(format::read(&mut fields)?, template(model)?.call_form())?;
    let conversation = Conversation::read(app, &mut fields, tools.offered.clone())?;
    let text = conversation.render(template(model)?)?;
    let prompt = model.tokenizer.encode(&text, TOKENS)?;
    request::check_prompt("messages", &prompt, model)?;
    let open = opens_thinking(&text);
    if let Some(grammar) = &grammar {
        let able = template(model)?.source().contains("<think>")
            && conversation.options.enable_thinking != Some(false)
            && !text.trim_end().ends_with("</think>");
        let may_think = match (open, able) {
            (true, _) => Thinking::Open,
            (false, true) => Thinking::Possible,
            (false, false) => Thinking::Never,
        };
        settings.constraint = Some(model.constrain(grammar, may_think)?);
    }
    let one_call = tools.one_call();
    let reply = ReplyOptions { thinking, open, tools: tools.offered };
    let reading = Reading { reply, one_call };
    let shape = shape(logprobs.is_some());
    let events = request::submit(app, vec![prompt], &settings, logprobs)?;
    let Settings { telling, stream, .. } = settings;
    let answer = Answer::new(prefix, reading, model.clone(), telling.n, telling);
    Ok(Started { events, answer, shape, stream })
}

fn template(model: &Model) -> Result<&ChatTemplate, ApiError> {
    model.template.as_deref().ok_or_else(|| {
        ApiError::invalid(
            "the model file has no chat template: start the server with --chat-template, or use \
             /v1/completions",
        )
    })
}

/// Messages and what else the template is given.
struct Conversation {
    messages: Vec<Message>,
    options: RenderOptions,
}

impl Conversation {
    fn read(app: &App, fields: &mut Fields, tools: Option<Value>) -> Result<Self, ApiError> {
        let messages = messages::read(fields.require("messages")?)?;
        let mut options = app.render.clone();
        options.add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
        if let Some(effort) = fields.take::<String>("reasoning_effort")? {
            options.set_reasoning_effort(&effort);
        }
        options
            .kwargs
            .extend(fields.take::<Map<_, _>>("chat_template_kwargs")?.unwrap_or_default());
        if let Some(Value::Bool(thinking)) = options.kwargs.remove("enable_thinking") {
            options.enable_thinking = Some(thinking);
        }
        options.tools = tools;
        Ok(Self { messages, options })
    }

    fn render(&self, template: &ChatTemplate) -> Result<String, ApiError> {
        let rendered = template.prompt(&self.messages, &self.options);
        rendered.map_err(|e| ApiError::field("messages", format_args!("are refused: {e}")))
    }
}

/// How many alternatives of each token are asked for, if any probabilities are.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    let top = fields.take::<u32>("top_logprobs")?.map(|top| top as usize);
    match top {
        Some(top) if top > TOP_LOGPROBS => {
            Err(ApiError::field("top_logprobs", format_args!("may be {TOP_LOGPROBS} at most")))
        }
        Some(top) if top > 0 && !wanted => {
            Err(ApiError::field("top_logprobs", "needs logprobs to be true"))
        }
        top if wanted => Ok(Some(top.unwrap_or(0))),
        _ => fields.n_probs(),
    }
}

/// Whether thinking is told apart from the answer.
fn splits_reasoning(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.take::<String>("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => Ok(true),
        Some("none") => Ok(false),
        Some(other) => Err(ApiError::field(
            "reasoning_format",
            format_args!("is {other:?}: none, auto and deepseek are known"),
        )),
    }
}
