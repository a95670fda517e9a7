//! Log lines of the engine and its libraries, on stderr or in a file.

use std::{
    fs::File,
    io::{IsTerminal, stderr},
    path::PathBuf,
    sync::Mutex,
};

use clap::Args;
use engine::{Error, Result};
use tracing_subscriber::EnvFilter;

/// What is logged, and where.
#[derive(Args, Debug)]
#[command(next_help_heading = "Logging")]
pub(super) struct LogArgs {
    /// Log what may help to find a fault
    #[arg(short, long, global = true)]
    verbose: bool,
    /// 0: nothing, 1: errors, 2: warnings, 3: progress, 4 and more: everything; RUST_LOG overrides
    #[arg(long, alias = "verbosity", value_name = "N", global = true, default_value_t = 2)]
    log_verbosity: u8,
    /// Log into this file
    #[arg(long, value_name = "FILE", global = true)]
    log_file: Option<PathBuf>,
    /// Log nothing
    #[arg(long, global = true)]
    log_disable: bool,
}

impl LogArgs {
    /// Starts logging; once per process.
    pub(super) fn install(&self) -> Result<()> {
        // The graphics libraries tell far too much below warnings.
        let directives = match self.log_verbosity {
            _ if self.log_disable => "off",
            _ if self.verbose => "warn,engine=debug",
            0 => "off",
            1 => "error",
            2 => "warn,engine::serve=info",
            3 => "warn,engine=info",
            _ => "warn,engine=debug",
        };
        let filter =
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives));
        let log = tracing_subscriber::fmt().with_env_filter(filter);
        match &self.log_file {
            None => log.with_ansi(stderr().is_terminal()).with_writer(stderr).init(),
            Some(path) => {
                let file = File::create(path).map_err(|e| Error::io(path, e))?;
                log.with_ansi(false).with_writer(Mutex::new(file)).init();
            }
        }
        Ok(())
    }
}
