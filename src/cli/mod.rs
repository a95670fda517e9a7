//! The command line (spec/cli-and-server.md 1 to 3).
//!
//! stdout carries results only, everything else goes to stderr. Exit status: 0, 1 for a failure,
//! 2 for wrong usage.

mod devices;
mod inspect;
mod output;
mod tokenize;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use engine::Result;

/// Runs GGUF language models on the GPU.
#[derive(Parser)]
#[command(name = "engine", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the adapters, and which one would be used and why
    Devices(devices::DevicesArgs),
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
            Self::Devices(args) => devices::run(&args),
            Self::Inspect(args) => inspect::run(&args),
            Self::Tokenize(args) => tokenize::tokenize(&args),
            Self::Detokenize(args) => tokenize::detokenize(&args),
        }
    }
}

/// Parses `args`, runs the command, and turns what went wrong into a sentence and an exit status.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Help and version are results and no errors: clap knows.
        Err(error) => {
            // Nothing can be done if not even this can be printed.
            let _ = error.print();
            return ExitCode::from(error.exit_code().clamp(0, 2) as u8);
        }
    };
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {error}"));
            ExitCode::from(error.exit_status())
        }
    }
}
