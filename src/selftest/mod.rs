//! `engine selftest`: does this device, with this driver, compute correctly? Every family of
//! kernels against f64, the demo model against stored logits, and needles in long texts, so that
//! who gets garbage from a model learns which op is wrong.

mod demo;
mod file;
mod kernels;
mod lab;
mod stored;

pub use stored::{Answer, Known, Needle, Prompt, Stored};

use crate::{
    Engine, EngineOptions, Error, Gguf, Result,
    gpu::{AdapterKind, AdapterReport, DeviceOptions, Gpu},
    kv::KvType,
    model::ModelConfig,
    ops::reference::Deviation,
};
use lab::Lab;
use serde::Serialize;
use std::time::Instant;

/// What to test, and on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device.
    pub device: DeviceOptions,
    /// Types of cached keys and values.
    pub cache: (KvType, KvType),
    /// Tokens of the longest text with a needle, 0 for none; else what takes less than a minute.
    pub depth: Option<u32>,
}

/// Tokens of the shortest text that holds the facts and the question.
const LEAST_DEPTH: u32 = 256;

/// Tokens there is room for behind the longest text.
const ANSWER: u32 = 64;

/// One check and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Milliseconds, compiling kernels included.
    pub ms: u64,
    /// The largest error and its limit, or what is wrong.
    pub detail: String,
}

/// What is tested.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// Version of the engine.
    pub engine: &'static str,
    /// Operating system and processor architecture.
    pub system: String,
    /// The device.
    pub device: AdapterReport,
    /// Why it was chosen.
    pub reason: String,
    /// Types of cached keys and values.
    pub cache: [&'static str; 2],
}

/// All checks.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was tested.
    #[serde(flatten)]
    pub setup: Setup,
    /// In the order in which they ran.
    pub checks: Vec<Check>,
    /// What they say together.
    pub verdict: Verdict,
}

/// Whether the device can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is as it should be.
    Passed,
    /// A check failed.
    Failed,
}

/// What happens, as it happens.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The device is open.
    Device(&'a Setup),
    /// A check begins: if nothing follows, the driver did not survive it.
    Begin(&'a str),
    /// It has ended.
    End(&'a Check),
}

/// Told of every event; what it returns ends the run.
pub type Watch<'a> = &'a mut dyn FnMut(Event<'_>) -> Result<()>;

/// What a check found.
struct Finding {
    ok: bool,
    detail: String,
}

impl Finding {
    fn loaded(engine: &Engine) -> Self {
        let bytes = engine.memory().device.total;
        let detail =
            format!("{}, {} MiB on the device", engine.config().arch, bytes.div_ceil(1 << 20));
        Self { ok: true, detail }
    }
}

impl From<Deviation> for Finding {
    fn from(deviation: Deviation) -> Self {
        Self { ok: deviation.ok(), detail: deviation.to_string() }
    }
}

/// The checks so far.
struct Run<'a> {
    checks: Vec<Check>,
    watch: Watch<'a>,
}

impl Run<'_> {
    /// Runs a check; one that cannot run has failed.
    fn check(&mut self, name: &str, test: impl FnOnce() -> Result<Finding>) -> Result<()> {
        (self.watch)(Event::Begin(name))?;
        let started = Instant::now();
        let Finding { ok, detail } =
            test().unwrap_or_else(|e| Finding { ok: false, detail: e.to_string() });
        let ms = started.elapsed().as_millis() as u64;
        let check = Check { name: name.to_owned(), ok, ms, detail };
        (self.watch)(Event::End(&check))?;
        self.checks.push(check);
        Ok(())
    }
}

/// Runs all checks, those of `model` included, if there is one.
///
/// # Errors
/// A device that cannot be opened, a depth that is none, or what `watch` returns. Checks that
/// fail are no errors.
pub fn run(options: &Options, model: Option<&Gguf>, watch: Watch<'_>) -> Result<Report> {
    let demo_file = crate::demo::open()?;
    let device = DeviceOptions { poison: true, ..options.device.clone() };
    let lab = Lab {
        gpu: Gpu::open(&device)?,
        cache: options.cache,
        #[cfg(test)]
        falsify: None,
    };
    let context = ModelConfig::from_gguf(&demo_file)?.context_length;
    let most = options.depth.unwrap_or_else(|| usual_depth(lab.gpu.adapter()));
    let depths = depths(most, context)?;
    let setup = Setup {
        engine: env!("CARGO_PKG_VERSION"),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        device: lab.gpu.adapter().clone(),
        reason: lab.gpu.reason().to_owned(),
        cache: [options.cache.0.name(), options.cache.1.name()],
    };
    watch(Event::Device(&setup))?;
    let mut run = Run { checks: Vec::new(), watch };
    for check in kernels::checks(&lab) {
        run.check(&check.name, || check.run(&lab).map(Finding::from))?;
    }
    drop(lab);
    demo_checks(&mut run, &demo_file, options, &depths)?;
    if let Some(gguf) = model {
        file::checks(&mut run, gguf, &engine_options(options, file::TOKENS as u32))?;
    }
    let passed = run.checks.iter().all(|check| check.ok);
    let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
    Ok(Report { setup, checks: run.checks, verdict })
}

fn demo_checks(run: &mut Run<'_>, file: &Gguf, options: &Options, depths: &[u32]) -> Result<()> {
    let stored = Stored::open()?;
    let longest = depths.last().copied().unwrap_or(LEAST_DEPTH);
    let mut loaded = None;
    run.check("demo model: load", || {
        let options = engine_options(options, longest + ANSWER);
        let engine = loaded.insert(Engine::from_gguf(file, &options, &mut |_, _| ())?);
        Ok(Finding::loaded(engine))
    })?;
    let Some(engine) = &mut loaded else { return Ok(()) };
    for prompt in &stored.prompts {
        let name = format!("demo model: {}", prompt.name);
        run.check(&name, || demo::prompt(engine, prompt, options.cache))?;
    }
    for depth in depths {
        run.check(&format!("demo model: needle at {depth}"), || {
            let depth = *depth as usize;
            let known = stored.needles.iter().find(|n| n.n_tokens.next_power_of_two() == depth);
            let needle = match known {
                Some(needle) => needle.clone(),
                None => stored.needles[0].at(depth, engine.tokenizer())?,
            };
            demo::needle(engine, &needle, options.cache)
        })?;
    }
    Ok(())
}

fn engine_options(options: &Options, context: u32) -> EngineOptions {
    EngineOptions {
        device: options.device.clone(),
        context: Some(context),
        cache_k: options.cache.0,
        cache_v: options.cache.1,
        ..EngineOptions::default()
    }
}

/// What takes less than a minute.
fn usual_depth(device: &AdapterReport) -> u32 {
    match device.kind {
        AdapterKind::Software => 2048,
        _ => 32_768,
    }
}

/// Rising depths up to `most`, those of the stored needles among them, in a context of `context`.
fn depths(most: u32, context: u32) -> Result<Vec<u32>> {
    let largest = context - ANSWER;
    if most != 0 && !(LEAST_DEPTH..=largest).contains(&most) {
        return Err(Error::Usage(format!(
            "--depth {most}: texts have {LEAST_DEPTH} to {largest} tokens, 0 leaves them out"
        )));
    }
    let stored = (0..).map(|i| 2048 << (2 * i)).take_while(|depth| *depth < most);
    Ok(stored.chain((most > 0).then_some(most)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_rise_to_what_is_asked_for() {
        let of = |most| depths(most, 1 << 20).map_err(|e| e.to_string());
        assert_eq!(of(0), Ok(vec![]));
        assert_eq!(of(256), Ok(vec![256]));
        assert_eq!(of(2048), Ok(vec![2048]));
        assert_eq!(of(32_768), Ok(vec![2048, 8192, 32_768]));
        assert_eq!(of(1_000_000), Ok(vec![2048, 8192, 32_768, 131_072, 524_288, 1_000_000]));
        assert!(of(255).unwrap_err().contains("--depth 255"));
        assert!(of(u32::MAX).unwrap_err().contains("0 leaves them out"));
    }

    #[test]
    fn what_cannot_run_has_failed() {
        let mut seen = Vec::new();
        let mut watch = |event: Event<'_>| {
            seen.push(format!("{event:?}"));
            Ok(())
        };
        let mut run = Run { checks: Vec::new(), watch: &mut watch };
        run.check("broken", || Err(Error::Device("lost".into()))).unwrap();
        assert!(!run.checks[0].ok);
        assert_eq!(run.checks[0].detail, "device: lost");
        assert_eq!(seen[0], "Begin(\"broken\")");
    }
}
