//! The chat template of a model: Jinja as transformers runs it (spec/tokenizer.md 5.1).

use std::collections::BTreeMap;

use minijinja::{Environment, ErrorKind, Value};

use super::jinja::{self, Raised};
use super::message::{self, Message};
use super::{CallForm, SpecialToken, Tokenizer, VocabSource, python};
use crate::{Error, Result};

/// Work one rendering may do: about one instruction or 64 bytes made each, so this bounds time and
/// memory whatever the template does (spec/gguf.md 6.20). A message takes Qwen's templates about 150.
const FUEL: u64 = 4_000_000;
/// Stack for one rendering, in bytes; only what is used becomes memory.
const STACK: usize = 256 << 20;
/// Longest template that is compiled, in bytes.
const MAX_SOURCE: usize = 256 << 10;
/// The template's name in messages.
const NAME: &str = "chat template";

/// A template of the plain ChatML format, for files without one.
const CHATML: &str = "\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}";

/// What else a template is given.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Tool definitions, a list as in OpenAI's API.
    pub tools: Option<serde_json::Value>,
    /// End with the start of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Thinking on or off; the template's own habit without it.
    pub enable_thinking: Option<bool>,
    /// Further variables (`chat_template_kwargs`).
    pub kwargs: serde_json::Map<String, serde_json::Value>,
}

impl RenderOptions {
    /// Sets how hard to think, in the words of the templates that know it (spec/tokenizer.md 5.3):
    /// clients know more levels than they do. `none` turns thinking off.
    pub fn set_reasoning_effort(&mut self, effort: &str) {
        let level = match effort {
            "none" => {
                self.enable_thinking = Some(false);
                return;
            }
            "high" | "max" => "xhigh",
            "minimal" => "low",
            level => level,
        };
        self.kwargs.insert("reasoning_effort".into(), level.into());
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles Jinja `source`; `bos` and `eos` are the texts of those tokens.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::Template(format!(
                "it has {} bytes, more than the {MAX_SOURCE} that are allowed",
                source.len()
            )));
        }
        let mut env = jinja::environment(FUEL);
        let runnable = without_generation_tags(source);
        let env = with_deep_stack(|| {
            env.add_template_owned(NAME, runnable).map_err(|e| Error::Template(e.to_string()))?;
            Ok(env)
        })?;
        Ok(Self { source: source.to_owned(), env, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The template of a model file.
    ///
    /// # Errors
    /// The file has none, or it does not compile.
    pub fn of_model(source: &VocabSource, tokenizer: &Tokenizer) -> Result<Self> {
        let template = source.chat_template.as_deref().ok_or_else(|| {
            Error::Template(
                "the file has no tokenizer.chat_template; pass --chat-template chatml to use the \
                 plain ChatML format, or --raw for none"
                    .into(),
            )
        })?;
        let text = |role| tokenizer.special_text(role);
        Self::new(template, &text(SpecialToken::Bos), &text(SpecialToken::Eos))
    }

    /// The Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How it has the model write calls of tools.
    pub fn call_form(&self) -> CallForm {
        if self.source.contains("<function=") { CallForm::Tags } else { CallForm::Json }
    }

    /// The built-in ChatML template.
    pub fn chatml(bos: &str, eos: &str) -> Result<Self> {
        Self::new(CHATML, bos, eos)
    }

    /// The prompt for a conversation: messages from a client are brought into the form that
    /// templates expect, and a final assistant message is continued instead of answered
    /// (spec/tokenizer.md 5.2).
    pub fn prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let messages = message::prepare(messages)?;
        let continues = messages.last().is_some_and(|last| last.role == "assistant");
        if !(continues && options.add_generation_prompt) {
            return self.render(&messages, options);
        }
        let options = RenderOptions { add_generation_prompt: false, ..options.clone() };
        let mut text = self.render(&messages, &options)?;
        let turn = text.trim_end_matches('\n');
        if let Some(open) = turn.strip_suffix(&self.eos) {
            text.truncate(open.len());
        }
        Ok(text)
    }

    /// Renders exactly these messages. An error holds the template's own sentence if it raised one.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let messages =
            serde_json::to_value(messages).map_err(|e| Error::Template(e.to_string()))?;
        let mut context = BTreeMap::new();
        let mut set = |name, value| context.insert(name, value);
        set("bos_token", Value::from(self.bos.as_str()));
        set("eos_token", Value::from(self.eos.as_str()));
        for (name, value) in &options.kwargs {
            set(name, python::from_json(value));
        }
        set("messages", python::from_json(&messages));
        set("add_generation_prompt", Value::from(options.add_generation_prompt));
        if let Some(tools) = &options.tools {
            set("tools", python::from_json(tools));
        }
        if let Some(thinking) = options.enable_thinking {
            set("enable_thinking", Value::from(thinking));
        }
        with_deep_stack(|| {
            let template = self.env.get_template(NAME);
            let rendered = template.and_then(|t| t.render(Value::from_pairs(context)));
            rendered.map_err(|e| Error::Template(sentence(&e)))
        })
    }
}

/// Runs `work` where there is stack enough for the deepest value that [`FUEL`] can build: dropping,
/// comparing and printing one takes up to about 150 bytes of stack a level.
fn with_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(NAME.into()).stack_size(STACK);
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|e| Error::Template(format!("no thread to render it: {e}")))?;
        running.join().unwrap_or_else(|_| Err(Error::Template("rendering it failed".into())))
    })
}

/// The template's own sentence, or the engine's for other failures.
fn sentence(error: &minijinja::Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return message.clone();
        }
        cause = error.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => {
            "it does more work than one prompt is allowed".into()
        }
        _ => error.to_string(),
    }
}

/// The `generation` tags mark what to train on; here their content is just rendered. They become
/// an `if`, which treats the blanks around it alike.
fn without_generation_tags(source: &str) -> String {
    let mut tags = source.split("{%");
    let mut out = tags.next().unwrap_or_default().to_owned();
    for part in tags {
        out.push_str("{%");
        let tag = part.trim_start_matches(['-', '+']).trim_start();
        let statement = [("generation", "if true"), ("endgeneration", "endif")]
            .into_iter()
            .find_map(|(name, statement)| Some((statement, tag.strip_prefix(name)?)))
            .filter(|(_, rest)| {
                let rest = rest.trim_start();
                rest.trim_start_matches(['-', '+']).starts_with("%}")
            });
        match statement {
            Some((statement, rest)) => {
                out.push_str(&part[..part.len() - tag.len()]);
                out.push_str(statement);
                out.push_str(rest);
            }
            None => out.push_str(part),
        }
    }
    out
}
