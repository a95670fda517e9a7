//! What a run would measure, and the memory that it would take: nothing is loaded.

use super::{Options, Setting, Test, choices, setting::visits};
use crate::{
    Gguf, Result,
    gpu::AdapterMemory,
    plan::{Context, Heaps, Model, Plan},
};
use std::{collections::BTreeSet, fmt};

/// A run of the bench that is still to come.
#[derive(Clone, Debug)]
pub struct Outlook {
    models: Vec<String>,
    tests: Vec<Test>,
    settings: usize,
    /// Times that a model is loaded.
    visits: usize,
    /// Tokens of all visits together, histories and untimed runs included.
    tokens: u64,
    repetitions: u32,
    /// What loading each model with each setting takes.
    plans: Vec<(Setting, Plan)>,
}

impl Outlook {
    /// Of `models`, each named for people.
    ///
    /// # Errors
    /// A file or device that cannot run it. Memory that is short is no error here.
    pub fn new(models: &[(String, Gguf)], options: &Options) -> Result<Self> {
        let adapter = AdapterMemory::find(options.engine.device.select.as_deref())?;
        let heaps = Heaps::of(&adapter, options.engine.memory)?;
        let context = Context::Tokens(options.context());
        let mut plans = Vec::new();
        for (name, gguf) in models {
            let model = Model::of_file(gguf, name)?;
            for setting in &options.settings {
                let choices = choices(options, setting, context);
                plans.push((*setting, Plan::new(&model, &choices, &adapter.caps, &heaps)?));
            }
        }
        let visits = visits(plans.len()).len();
        Ok(Self {
            models: models.iter().map(|(name, _)| name.clone()).collect(),
            tests: options.tests.clone(),
            settings: options.settings.len(),
            tokens: visits as u64 * tokens(options),
            repetitions: options.repetitions,
            visits,
            plans,
        })
    }

    /// The sentence for the first setting that does not fit.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn check(&self) -> Result<()> {
        self.plans.iter().try_for_each(|(_, plan)| plan.check())
    }
}

/// Tokens that a visit processes.
fn tokens(options: &Options) -> u64 {
    let runs = u64::from(options.repetitions) + 1;
    let tests: u64 = options.tests.iter().map(|test| u64::from(test.tokens()) * runs).sum();
    let depths: BTreeSet<_> = options.tests.iter().map(|test| test.depth).collect();
    let prompts = depths.into_iter().filter(|_| !options.synthetic_history);
    tests + prompts.map(u64::from).sum::<u64>()
}

/// "1 visit", "2 visits".
fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { models, tests, settings, visits, tokens, repetitions, plans } = self;
        let tests: Vec<_> = tests.iter().map(Test::to_string).collect();
        writeln!(f, "{}: {}", models.join(", "), tests.join(", "))?;
        let of = match models.len() {
            1 => String::new(),
            n => format!(" of {}", counted(n as u64, "model")),
        };
        writeln!(
            f,
            "each once untimed and {} timed, in {} of {}{of}: {}",
            counted((*repetitions).into(), "time"),
            counted(*visits as u64, "visit"),
            counted(*settings as u64, "setting"),
            counted(*tokens, "token"),
        )?;
        for (i, (setting, plan)) in plans.iter().enumerate() {
            if models.len() > 1 && i % settings == 0 {
                writeln!(f, "{}", models[i / settings])?;
            }
            write!(f, "  {setting}: a context of {}", plan.context)?;
            for heap in &plan.heaps {
                write!(f, ", {:.2} MiB {}", heap.planned as f64 / 1_048_576.0, heap.name)?;
            }
            writeln!(f, "{}", if plan.fits { "" } else { ", which does not fit" })?;
        }
        Ok(())
    }
}
