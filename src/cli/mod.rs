//! The command line (spec/cli-and-server.md 1 to 3).
//!
//! stdout carries results only, everything else goes to stderr. Exit status: 0, 1 for a failure,
//! 2 for wrong usage.

mod args;
mod bench;
mod chat;
mod devices;
mod host_memory;
mod inspect;
mod interrupt;
mod kept;
mod logging;
mod logits;
mod output;
mod plan;
mod progress;
mod prompt;
mod ranges;
mod report;
mod run;
mod selftest;
mod serve;
mod session;
mod spelling;
mod tokenize;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use engine::Result;

/// Runs GGUF language models on the GPU.
///
/// llama.cpp's flags are understood as it spells them; those without a meaning here are ignored
/// with a notice.
#[derive(Parser)]
#[command(name = "engine", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    logging: logging::LogArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Complete a prompt, or have a conversation if there is none and stdin is a terminal
    Run(run::RunArgs),
    /// Have a conversation: /bye ends it, /clear forgets it, Ctrl-C stops an answer
    Chat(run::RunArgs),
    /// Serve OpenAI's API over HTTP
    Serve(serve::ServeArgs),
    /// Write the logits of a token list to a safetensors file
    Logits(logits::LogitsArgs),
    /// Measure how fast a model runs, and check what it says
    Bench(bench::BenchArgs),
    /// Show what would go where in memory, and the longest context that fits, without loading
    Plan(plan::PlanArgs),
    /// List the adapters, and which one would be used and why
    Devices(devices::DevicesArgs),
    /// Find out whether a device and its driver compute correctly
    Selftest(selftest::SelftestArgs),
    /// Show what a GGUF file holds, and what of it cannot run
    #[command(alias = "info")]
    Inspect(inspect::InspectArgs),
    /// Show the tokens of a text
    Tokenize(tokenize::TokenizeArgs),
    /// Show the text of tokens
    Detokenize(tokenize::DetokenizeArgs),
}

impl Command {
    fn run(self) -> Result<()> {
        match self {
            Self::Run(args) => run::run(&args),
            Self::Chat(args) => run::chat(&args),
            Self::Serve(args) => serve::run(&args),
            Self::Logits(args) => logits::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Plan(args) => plan::run(&args),
            Self::Devices(args) => devices::run(&args),
            Self::Selftest(args) => selftest::run(&args),
            Self::Inspect(args) => inspect::run(&args),
            Self::Tokenize(args) => tokenize::tokenize(&args),
            Self::Detokenize(args) => tokenize::detokenize(&args),
        }
    }
}

/// Parses `args`, runs the command, and turns what went wrong into a sentence and an exit status.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let outcome = spelling::normalise(args, &built()).and_then(|normalised| {
        match Cli::try_parse_from(normalised.args) {
            Ok(cli) => {
                normalised.notices.iter().for_each(output::note);
                cli.logging.install()?;
                cli.command.run().map(|()| ExitCode::SUCCESS)
            }
            Err(answer) => {
                // Help and version come as errors, too. Nothing is left to do if printing fails.
                let _ = answer.print();
                Ok(ExitCode::from(if answer.use_stderr() { 2 } else { 0 }))
            }
        }
    });
    outcome.unwrap_or_else(|error| {
        output::note(format_args!("error: {error}"));
        ExitCode::from(error.exit_status())
    })
}

/// The declaration of all commands and flags.
fn built() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}
