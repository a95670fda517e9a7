//! `engine run`: one prompt, or a conversation where the user is there to have one.

use std::io::{self, IsTerminal, Read};

use clap::Args;
use engine::{
    Error, Result,
    plan::Checkpoints,
    text::{Message, opens_thinking},
};

use super::{
    args::{GenerateArgs, ModelArgs, SamplingArgs},
    chat, output,
    prompt::{Prompt, PromptArgs, TemplateArgs},
    report::{self, Report},
    session::{self, Session},
};

/// Flags of `engine run` and `engine chat`.
#[derive(Args, Debug)]
pub(super) struct RunArgs {
    /// Have a conversation; the prompt, if given, is its first message
    #[arg(short = 'i', long, alias = "interactive", conflicts_with_all = ["raw", "tokens", "json"])]
    conversation: bool,
    /// End after the first answer
    #[arg(long)]
    single_turn: bool,
    /// Show only the answer, not the thinking before it
    #[arg(long, alias = "hidethinking")]
    hide_thinking: bool,
    /// Print one JSON object instead of streaming text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    template: TemplateArgs,
}

/// Runs `engine run`.
pub(super) fn run(args: &RunArgs) -> Result<()> {
    start(args, args.conversation)
}

/// Runs `engine chat`.
pub(super) fn chat(args: &RunArgs) -> Result<()> {
    if args.prompt.raw || args.json {
        let flag = if args.json { "--json" } else { "--raw" };
        return Err(Error::Usage(format!("{flag} does not go with chat; use run")));
    }
    start(args, true)
}

fn start(args: &RunArgs, conversation: bool) -> Result<()> {
    let terminal = io::stdin().is_terminal();
    let mut stdin = io::stdin();
    // In a conversation stdin brings the messages, one a line.
    let piped = !terminal && !conversation;
    let prompt = args.prompt.read(piped.then_some(&mut stdin as &mut dyn Read))?;
    let conversation = conversation || (prompt.is_none() && terminal && !args.prompt.raw);
    if !conversation {
        let missing = "no prompt: give -p, -f or --tokens, or pipe one in".to_owned();
        return one_shot(args, prompt.ok_or(Error::Usage(missing))?);
    }
    let first = match prompt {
        None => None,
        Some(Prompt::Text(text)) => Some(text),
        Some(Prompt::Tokens(_)) => {
            return Err(Error::Usage("--tokens does not go with a conversation".into()));
        }
    };
    // That of the turn before, and the one that takes its place.
    let mut session = open(args, Checkpoints { memory: u64::MAX, count: 2 })?;
    let system = args.prompt.system_prompt.clone();
    chat::converse(&mut session, system, first, args.single_turn)?;
    finish(args, &mut session)
}

fn one_shot(args: &RunArgs, prompt: Prompt) -> Result<()> {
    let mut session = open(args, Checkpoints::default())?;
    let (tokens, open) = encode(args, &session, prompt)?;
    let mut sequence = session.engine.new_sequence()?;
    let mut print = session.printer(open);
    let mut show = |text: &str| if args.json { Ok(()) } else { print(text) };
    let done = session.complete(&mut sequence, tokens, None, &mut show)?;
    if args.json {
        output::json(&Report::new(&mut session, &done)?)?;
    } else {
        output::result("\n")?;
        output::note(report::summary(session.load, &done));
    }
    finish(args, &mut session)
}

/// The prompt's tokens, and whether they leave thinking open.
fn encode(args: &RunArgs, session: &Session, prompt: Prompt) -> Result<(Vec<u32>, bool)> {
    let text = match prompt {
        Prompt::Tokens(tokens) => {
            session::check_tokens(&session.engine, &tokens)?;
            return Ok((tokens, false));
        }
        Prompt::Text(text) => text,
    };
    let without_template = !session.has_template();
    if args.prompt.raw || without_template {
        if without_template && !args.prompt.raw {
            output::note("the file has no chat template: the prompt is taken as it is");
        }
        return Ok((session.encode(&text, true)?, false));
    }
    let system = args.prompt.system_prompt.iter();
    let mut messages: Vec<_> = system.map(|text| Message::new("system", text)).collect();
    messages.push(Message::new("user", text));
    let rendered = session.render(&messages, true)?;
    Ok((session.encode(&rendered, false)?, opens_thinking(&rendered)))
}

fn open(args: &RunArgs, checkpoints: Checkpoints) -> Result<Session> {
    let RunArgs { model, sampling, generate, template, hide_thinking, .. } = args;
    let mut options = model.options(1, checkpoints);
    options.time_reads |= args.json;
    Session::open(model, sampling, generate, template, *hide_thinking, &options)
}

/// Prints the tables of `--profile` and `--kv-stats`.
fn finish(args: &RunArgs, session: &mut Session) -> Result<()> {
    let engine = &mut session.engine;
    if let Some(profile) = engine.profile().filter(|_| args.model.profile) {
        output::note(report::profile(profile, engine.attention_reads()));
    }
    if args.model.kv_stats {
        output::note(report::kv(&engine.kv_stats()?));
    }
    Ok(())
}
