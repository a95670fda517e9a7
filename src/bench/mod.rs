//! `engine bench`: how fast a model runs, in a way that its readers can trust
//! (spec/cli-and-server.md 6).
//!
//! Every shape is run once before it is timed; that run's greedy tokens are what the timed ones
//! have to repeat, else the row is invalid. Every repetition starts from the same state, so that
//! no row depends on those before it. Models and settings that are compared are measured A B A, and
//! others' use of the machine is watched.

mod clients;
mod compare;
mod outlook;
mod row;
mod sample;
mod setting;
mod sql;
mod stored;
mod subject;
mod svg;
mod table;
mod trial;
mod watch;

pub use compare::Comparison;
pub use outlook::Outlook;
pub use row::Row;
pub use sample::{Spread, rate};
pub use setting::{Kind, Setting, Test};
pub use sql::sql;
pub use stored::{Stored, json};
pub use subject::Subject;
pub use svg::svg;
pub use table::{csv, markdown};
pub use trial::{Run, Trial};
pub use watch::Load;

use crate::{
    Engine, EngineOptions, Error, Gguf, Result,
    gpu::{Gpu, Heap},
    plan::{self, Bandwidth, Choices, Context},
};
use std::{ops::ControlFlow, thread, time::Duration};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// One row each.
    pub tests: Vec<Test>,
    /// For each of these.
    pub settings: Vec<Setting>,
    /// Timed runs of each test on every visit of a setting.
    pub repetitions: u32,
    /// Fill depths with random state instead of a prompt.
    pub synthetic_history: bool,
    /// To wait before each test.
    pub delay: Duration,
    /// All else about loading the model.
    pub engine: EngineOptions,
}

impl Options {
    /// Tokens of the longest test.
    fn context(&self) -> u32 {
        let needs = self.tests.iter().map(|test| test.depth.saturating_add(test.tokens()));
        needs.max().unwrap_or(0)
    }
}

/// A model with a setting, measured once.
struct Visit {
    /// Of all models with all settings, the settings of one model in a row.
    case: usize,
    /// One each of the options' tests.
    trials: Vec<Trial>,
}

/// Measures `models`, each named for people, and checks them against the `reference`; `progress` is
/// told what comes next.
///
/// # Errors
/// A file or device that cannot run it. Rows that are invalid are no error here.
pub fn run(
    models: &[(String, Gguf)],
    options: &Options,
    reference: Option<&Stored>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<(Subject, Row)>> {
    let mut visits = Vec::new();
    let mut machine = None;
    let settings = options.settings.len();
    let order = setting::visits(models.len() * settings);
    for (i, &case) in order.iter().enumerate() {
        let (name, gguf) = &models[case / settings];
        let setting = case % settings;
        let whole =
            format!("{name}, setting {} ({} of {} visits)", setting + 1, i + 1, order.len());
        let mut engine = open(gguf, options, &options.settings[setting])?;
        let gpu = engine.gpu().clone();
        machine.get_or_insert_with(|| (gpu.bandwidth(Heap::Device).ok(), gpu));
        let mut say = |test: &str| progress(&format!("{whole}: {test}"));
        visits.push(Visit { case, trials: visit(&mut engine, options, &mut say)? });
    }
    let (copy, gpu) = machine.ok_or_else(|| Error::Usage("there is nothing to measure".into()))?;
    let (mut subjects, mut fixed) = (Vec::new(), Vec::new());
    for (name, gguf) in models {
        let model = plan::Model::of_file(gguf, name)?;
        subjects.push(Subject::new(gguf, &model, options, gpu.adapter(), copy)?);
        for setting in &options.settings {
            fixed.push(fixed_reads(&model, options, setting, &gpu)?);
        }
    }
    Ok(row::rows(&visits, options, &subjects, &fixed, reference))
}

/// Bytes that decoding a token reads with `setting` whatever its depth.
fn fixed_reads(
    model: &plan::Model,
    options: &Options,
    setting: &Setting,
    gpu: &Gpu,
) -> Result<u64> {
    plan::fixed_reads(model, &choices(options, setting, Context::Trained), gpu.caps())
}

/// What a plan of one setting is of.
fn choices(options: &Options, setting: &Setting, context: Context) -> Choices {
    Choices {
        context,
        sequences: 1,
        cache_k: setting.cache_k,
        cache_v: setting.cache_v,
        kv_host: setting.kv_host,
        kv_staging: options.engine.kv_staging,
        chunk: setting.ubatch.min(setting.batch),
        experts_host: setting.experts_host,
        ngram: options.engine.ngram,
        checkpoints: options.engine.checkpoints,
        bandwidth: Bandwidth::default(),
    }
}

/// An engine for one setting, with room for the longest test.
fn open(gguf: &Gguf, options: &Options, setting: &Setting) -> Result<Engine> {
    let options = EngineOptions {
        context: Some(options.context()),
        chunk: setting.ubatch.min(setting.batch),
        cache_k: setting.cache_k,
        cache_v: setting.cache_v,
        kv_host: setting.kv_host,
        experts_host: setting.experts_host,
        ..options.engine.clone()
    };
    Engine::from_gguf(gguf, &options, &mut |_, _| ())
}

/// All tests on `engine`, in order; those at the same depth share its history.
fn visit(
    engine: &mut Engine,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Trial>> {
    let mut trials = vec![Trial::default(); options.tests.len()];
    let mut depths: Vec<u32> = options.tests.iter().map(|test| test.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    for depth in depths {
        let mut seq = engine.new_sequence()?;
        if depth > 0 {
            progress(&format!("a history of {depth} tokens"));
            if options.synthetic_history {
                engine.synthetic_history(&mut seq, depth)?;
            } else {
                let tokens = trial::tokens(engine.config().n_vocab, depth);
                engine.prefill(&mut seq, &tokens, &mut |_| ControlFlow::Continue(()))?;
            }
        }
        let start = engine.checkpoint(&seq)?;
        let tests = options.tests.iter().enumerate().filter(|(_, test)| test.depth == depth);
        for (i, test) in tests {
            progress(&test.to_string());
            thread::sleep(options.delay);
            trials[i] = trial::measure(engine, &mut seq, &start, *test, options.repetitions)?;
        }
    }
    Ok(trials)
}
