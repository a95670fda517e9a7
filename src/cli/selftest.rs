//! `engine selftest`: a text for bug reports that says which op is wrong.

use std::path::PathBuf;

use clap::Args;
use engine::{
    Error, Gguf, Result,
    selftest::{self, Event, Options, Setup},
};

use super::{
    args::{CacheArgs, DeviceArgs},
    devices, output,
};

/// Flags of `engine selftest`.
#[derive(Args, Debug)]
pub(super) struct SelftestArgs {
    /// Load this model, too, and check its logits
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens of the longest text in which the demo model has to find a fact; 0: none
    /// [default: 32768, on software Vulkan 2048]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Print one JSON object; the text goes to stderr
    #[arg(long)]
    json: bool,
}

/// Runs `engine selftest`: a failure if a check fails.
pub(super) fn run(args: &SelftestArgs) -> Result<()> {
    let model = args.model.as_ref().map(Gguf::open).transpose()?;
    let options =
        Options { device: args.device.options(), cache: args.cache.types(), depth: args.depth };
    let say = |text: String| match args.json {
        true => {
            output::prompt(&text);
            Ok(())
        }
        false => output::result(text),
    };
    let mut watch = |event: Event<'_>| say(line(event));
    let report = selftest::run(&options, model.as_ref(), &mut watch)?;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
    let seconds = report.checks.iter().map(|check| check.ms).sum::<u64>() as f64 / 1e3;
    let verdict = match failed.as_slice() {
        [] => format!("all {} checks passed", report.checks.len()),
        _ => format!(
            "{} of {} checks failed: {}",
            failed.len(),
            report.checks.len(),
            failed.join(", ")
        ),
    };
    say(format!("verdict: {verdict} ({seconds:.1} s)\n"))?;
    if args.json {
        output::json(&report)?;
    }
    match failed.len() {
        0 => Ok(()),
        n => Err(Error::Device(format!(
            "{n} checks failed; if the driver is up to date, please report all that was printed"
        ))),
    }
}

/// What is printed of an event: the name of a check before it runs, and the rest of the line
/// after it.
fn line(event: Event<'_>) -> String {
    match event {
        Event::Device(Setup { engine, system, device, reason, cache: [k, v] }) => {
            let device = devices::describe(device, true, reason);
            format!("engine {engine} on {system}, keys in {k}, values in {v}\ndevice {device}\n")
        }
        Event::Begin(name) => format!("{name:<36} "),
        Event::End(check) => {
            let verdict = if check.ok { "ok    " } else { "FAILED" };
            format!("{verdict} {:>6} ms  {}\n", check.ms, check.detail)
        }
    }
}
