//! `engine run`: one prompt, or a conversation where the user is there to have one.

use std::{
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use clap::Args;
use engine::{
    Error, Result,
    plan::Checkpoints,
    text::{Message, opens_thinking},
};

use super::{
    args::{GenerateArgs, ModelArgs, SamplingArgs},
    chat,
    kept::{self, Kept},
    output,
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
    /// Keep the conversation in FILE: what is in it need not be processed again
    #[arg(long, alias = "prompt-cache", value_name = "FILE")]
    session: Option<PathBuf>,
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
    kept::check(args.session.as_deref())?;
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
    let mut session = open(args, POINTS)?;
    let kept = Kept::open(&session.engine, args.session.as_deref())?;
    let system = args.prompt.system_prompt.clone();
    chat::converse(&mut session, kept, system, first, args.single_turn)?;
    finish(args, &mut session)
}

fn one_shot(args: &RunArgs, prompt: Prompt) -> Result<()> {
    let points = if args.session.is_some() { POINTS } else { Checkpoints::default() };
    let mut session = open(args, points)?;
    let opening = encode(args, &session, prompt)?;
    let mut kept = Kept::open(&session.engine, args.session.as_deref())?;
    let answered = answer(args, &mut session, &mut kept, opening);
    // Whatever has ended it: what was processed is kept.
    let saved = kept.save(&session.engine);
    answered.and(saved)?;
    finish(args, &mut session)
}

fn answer(args: &RunArgs, session: &mut Session, kept: &mut Kept, opening: Opening) -> Result<()> {
    let Opening { mut messages, tokens, open } = opening;
    let mut print = session.printer(open);
    let mut show = |text: &str| if args.json { Ok(()) } else { print(text) };
    let done = session.complete(&mut kept.history, tokens, &mut show)?;
    if !messages.is_empty() {
        messages.push(session::answer(&done.text, open));
    }
    kept.messages = messages;
    if args.json {
        return output::json(&Report::new(session, &done)?);
    }
    output::result("\n")?;
    output::note(report::summary(session.load, &done));
    Ok(())
}

/// Points to go back to: after the instructions, before the last answer, and two between.
const POINTS: Checkpoints = Checkpoints { memory: u64::MAX, count: 4 };

/// How an answer begins.
struct Opening {
    /// None without a template.
    messages: Vec<Message>,
    tokens: Vec<u32>,
    /// Whether they leave thinking open.
    open: bool,
}

fn encode(args: &RunArgs, session: &Session, prompt: Prompt) -> Result<Opening> {
    let plain = |tokens| Opening { messages: Vec::new(), tokens, open: false };
    let text = match prompt {
        Prompt::Tokens(tokens) => {
            session::check_tokens(&session.engine, &tokens)?;
            return Ok(plain(tokens));
        }
        Prompt::Text(text) => text,
    };
    let without_template = !session.has_template();
    if args.prompt.raw || without_template {
        if without_template && !args.prompt.raw {
            output::note("the file has no chat template: the prompt is taken as it is");
        }
        return Ok(plain(session.encode(&text, true)?));
    }
    let system = args.prompt.system_prompt.iter();
    let mut messages: Vec<_> = system.map(|text| Message::new("system", text)).collect();
    messages.push(Message::new("user", text));
    let rendered = session.render(&messages, true)?;
    let tokens = session.encode(&rendered, false)?;
    Ok(Opening { messages, tokens, open: opens_thinking(&rendered) })
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
