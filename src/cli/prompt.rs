//! From what the user gives to prompt tokens: text or file, escapes, chat template.

use std::{fs, io::Read, path::PathBuf};

use clap::{Args, ValueEnum};
use engine::{
    Error, Result,
    text::{ChatTemplate, RenderOptions, SpecialToken, Tokenizer},
};
use serde_json::{Map, Value};

/// Where the prompt comes from.
#[derive(Args, Debug)]
#[command(next_help_heading = "Prompt")]
pub(super) struct PromptArgs {
    /// The prompt; \n, \t, \r, \\, \' and \" are escapes. What is piped in follows it
    #[arg(short, long, value_name = "TEXT", group = "source")]
    prompt: Option<String>,
    /// Read the prompt from a file, as it is
    #[arg(short, long, value_name = "FILE", group = "source")]
    file: Option<PathBuf>,
    /// The prompt as token ids, without a chat template
    #[arg(long, value_name = "IDS", value_delimiter = ',', group = "source")]
    tokens: Option<Vec<u32>>,
    /// Take the prompt as it is, without the chat template
    #[arg(long)]
    pub(super) raw: bool,
    /// System message of the chat template
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens"])]
    pub(super) system_prompt: Option<String>,
    /// Take backslashes in --prompt as they are
    #[arg(long)]
    no_escape: bool,
}

/// The user's prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl PromptArgs {
    /// What was given by flags and, if `piped` is there, by stdin: after `--prompt` text (a blank
    /// line between them), or alone.
    pub(super) fn read(&self, piped: Option<&mut dyn Read>) -> Result<Option<Prompt>> {
        if let Some(tokens) = &self.tokens {
            return Ok(Some(Prompt::Tokens(tokens.clone())));
        }
        if let Some(path) = &self.file {
            let text = fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
            return Ok(Some(Prompt::Text(text)));
        }
        let mut input = String::new();
        if let Some(piped) = piped {
            piped.read_to_string(&mut input).map_err(|e| Error::io("stdin", e))?;
        }
        let input = Some(input).filter(|input| !input.is_empty());
        let text = self.prompt.as_deref();
        let text = text.map(|text| if self.no_escape { text.to_owned() } else { unescape(text) });
        Ok(match (text, input) {
            (Some(text), Some(input)) => Some(format!("{text}\n\n{input}")),
            (text, input) => text.or(input),
        }
        .map(Prompt::Text))
    }
}

/// Replaces the escapes that llama.cpp replaces in `-p`; others stay.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let escaped = match (c, rest.as_str().chars().next()) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('t')) => '\t',
            ('\\', Some('r')) => '\r',
            ('\\', Some(quoted @ ('\\' | '\'' | '"'))) => quoted,
            _ => {
                out.push(c);
                continue;
            }
        };
        out.push(escaped);
        rest.next();
    }
    out
}

/// The chat template and what it is told.
#[derive(Args, Debug)]
#[command(next_help_heading = "Chat template")]
pub(super) struct TemplateArgs {
    /// Use `chatml`, or this Jinja source, in place of the file's template
    #[arg(long, value_name = "chatml|JINJA", env = "LLAMA_ARG_CHAT_TEMPLATE")]
    chat_template: Option<String>,
    /// Use the Jinja source in this file
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_CHAT_TEMPLATE_FILE")]
    #[arg(conflicts_with = "chat_template")]
    chat_template_file: Option<PathBuf>,
    /// Further variables for the template, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = parse_kwargs)]
    #[arg(env = "LLAMA_ARG_CHAT_TEMPLATE_KWARGS")]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Thinking on or off; auto leaves it to the template
    #[arg(long, value_enum, default_value_t = Switch::Auto, env = "LLAMA_ARG_REASONING")]
    reasoning: Switch,
    /// -1: think as long as the model likes; 0: do not think
    #[arg(long, value_name = "N", default_value_t = -1, env = "LLAMA_ARG_THINK_BUDGET")]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=0))]
    reasoning_budget: i32,
    /// How hard to think, for templates that know it: low, medium, high, ...
    #[arg(long, value_name = "LEVEL")]
    reasoning_effort: Option<String>,
    /// Ollama's spelling: true, false, or a level for --reasoning-effort
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "true")]
    #[arg(require_equals = true, conflicts_with_all = ["reasoning", "reasoning_effort"])]
    think: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
    Auto,
}

fn parse_kwargs(json: &str) -> std::result::Result<Map<String, Value>, String> {
    serde_json::from_str(json).map_err(|e| format!("expected a JSON object: {e}"))
}

impl TemplateArgs {
    /// The template of the flags, if they give one.
    pub(super) fn template(&self, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        let bos = tokenizer.special_text(SpecialToken::Bos);
        let eos = tokenizer.special_text(SpecialToken::Eos);
        if let Some(path) = &self.chat_template_file {
            let source = fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
            return ChatTemplate::new(&source, &bos, &eos).map(Some);
        }
        match self.chat_template.as_deref() {
            None => Ok(None),
            Some("chatml") => ChatTemplate::chatml(&bos, &eos).map(Some),
            Some(source) if source.contains("{%") || source.contains("{{") => {
                ChatTemplate::new(source, &bos, &eos).map(Some)
            }
            Some(name) => Err(Error::Usage(format!(
                "--chat-template {name}: the only built-in template is chatml, and this is no Jinja"
            ))),
        }
    }

    /// What the template is told.
    pub(super) fn render_options(&self) -> RenderOptions {
        let mut options = RenderOptions {
            enable_thinking: match self.reasoning {
                Switch::On => Some(true),
                Switch::Off => Some(false),
                Switch::Auto => (self.reasoning_budget == 0).then_some(false),
            },
            kwargs: self.chat_template_kwargs.clone().unwrap_or_default(),
            ..Default::default()
        };
        let effort = match self.think.as_deref() {
            Some("true") => {
                options.enable_thinking = Some(true);
                None
            }
            Some("false") => {
                options.enable_thinking = Some(false);
                None
            }
            level => level.or(self.reasoning_effort.as_deref()),
        };
        if let Some(effort) = effort {
            options.set_reasoning_effort(effort);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        prompt: PromptArgs,
        #[command(flatten)]
        template: TemplateArgs,
    }

    fn flags(args: &[&str]) -> Flags {
        Flags::try_parse_from(["engine"].iter().chain(args)).unwrap()
    }

    fn text(args: &[&str], piped: Option<&str>) -> Option<Prompt> {
        let mut bytes = piped.map(str::as_bytes);
        flags(args).prompt.read(bytes.as_mut().map(|bytes| bytes as &mut dyn Read)).unwrap()
    }

    #[test]
    fn stdin_follows_the_prompt_or_is_it() {
        let prompt = |text: &str| Some(Prompt::Text(text.to_owned()));
        assert_eq!(text(&["-p", "Sum up:"], Some("a\nb\n")), prompt("Sum up:\n\na\nb\n"));
        assert_eq!(text(&["-p", "Hi"], Some("")), prompt("Hi"));
        assert_eq!(text(&["-p", "Hi"], None), prompt("Hi"));
        assert_eq!(text(&[], Some("a")), prompt("a"));
        assert_eq!(text(&[], None), None);
        assert_eq!(text(&["--tokens", "1,2"], Some("a")), Some(Prompt::Tokens(vec![1, 2])));
    }

    #[test]
    fn escapes_are_those_of_llama_cpp_and_can_be_left_alone() {
        let escaped = r#"a\nb\\n\t\"\'\q\"#;
        assert_eq!(unescape(escaped), "a\nb\\n\t\"'\\q\\");
        assert_eq!(text(&["-p", r"a\n", "--no-escape"], None), Some(Prompt::Text(r"a\n".into())));
    }

    #[test]
    fn thinking_flags_reach_the_template() {
        let told = |args: &[&str]| {
            let options = flags(args).template.render_options();
            let effort = options.kwargs.get("reasoning_effort").cloned();
            (options.enable_thinking, effort.and_then(|e| e.as_str().map(str::to_owned)))
        };
        assert_eq!(told(&[]), (None, None));
        assert_eq!(told(&["--reasoning", "on"]), (Some(true), None));
        assert_eq!(told(&["--reasoning-budget", "0"]), (Some(false), None));
        assert_eq!(told(&["--reasoning-budget=-1"]), (None, None));
        assert_eq!(told(&["--think"]), (Some(true), None));
        assert_eq!(told(&["--think=false"]), (Some(false), None));
        assert_eq!(told(&["--think=low"]), (None, Some("low".into())));
        assert_eq!(told(&["--reasoning-effort", "high"]), (None, Some("xhigh".into())));
        assert_eq!(told(&["--reasoning-effort", "none"]), (Some(false), None));
        let kwargs = ["--chat-template-kwargs", r#"{"preserve_thinking": true}"#];
        assert_eq!(flags(&kwargs).template.render_options().kwargs["preserve_thinking"], true);
    }
}
