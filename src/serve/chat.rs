//! `/v1/chat/completions` (spec/cli-and-server.md 4.1).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, Format},
    app::{App, Model},
    error::ApiError,
    fields::Fields,
    format, http, messages,
    request::{self, Settings},
    stream::{self, Started},
    tools::Tools,
};
use crate::text::{
    ChatTemplate, EncodeOptions, Message, RenderOptions, ReplyOptions, Thinking, opens_thinking,
};

/// Most alternatives of a token, as in OpenAI's API.
const TOP_LOGPROBS: usize = 20;

/// Answers a conversation.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let started = http::work(&app, request, start).await?;
    stream::respond(started, app.ping).await
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

fn start(app: &App, model: &Arc<Model>, mut fields: Fields) -> Result<Started, ApiError> {
    let mut settings = Settings::read(app, model, &mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    let thinking = splits_reasoning(&mut fields)?;
    let tools = Tools::read(&mut fields)?;
    let grammar = tools.grammar(format::read(&mut fields)?)?;
    let conversation = Conversation::read(app, &mut fields, tools.offered.clone())?;
    let text = conversation.render(template(model)?)?;
    let tokens = EncodeOptions { add_special: false, parse_special: true };
    let prompt = model.tokenizer.encode(&text, tokens)?;
    request::check_prompt("messages", &prompt, model)?;
    let open = opens_thinking(&text);
    if let Some(grammar) = &grammar {
        let may_think = match text.trim_end().ends_with("</think>") {
            _ if open => Thinking::Open,
            false => Thinking::Possible,
            true => Thinking::Never,
        };
        settings.constraint = Some(model.constrain(grammar, may_think)?);
    }
    let one_call = tools.one_call();
    let reply = ReplyOptions { thinking, open, tools: tools.offered };
    let format = Format::Chat { reply, one_call, logprobs: logprobs.is_some() };
    let events = request::submit(app, vec![prompt], &settings, logprobs)?;
    let answer = Answer::new(format, model.clone(), settings.telling.n, settings.telling);
    Ok(Started { events, answer, stream: settings.stream })
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
        top => Ok(wanted.then_some(top.unwrap_or(0))),
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
