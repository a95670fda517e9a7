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
    model: String,
    tests: Vec<Test>,
    /// Times that a setting is loaded.
    visits: usize,
    /// Tokens of all visits together, histories and untimed runs included.
    tokens: u64,
    repetitions: u32,
    /// What loading with each setting takes.
    plans: Vec<(Setting, Plan)>,
}

impl Outlook {
    /// Of the model of `gguf`, `name`d for people.
    ///
    /// # Errors
    /// A file or device that cannot run it. Memory that is short is no error here.
    pub fn new(gguf: &Gguf, name: &str, options: &Options) -> Result<Self> {
        let model = Model::of_file(gguf, name)?;
        let adapter = AdapterMemory::find(options.engine.device.select.as_deref())?;
        let heaps = Heaps::of(&adapter, options.engine.memory)?;
        let context = Context::Tokens(options.context());
        let plan = |setting: &Setting| {
            let choices = choices(options, setting, context);
            Ok((*setting, Plan::new(&model, &choices, &adapter.caps, &heaps)?))
        };
        let visits = visits(options.settings.len()).len();
        Ok(Self {
            plans: options.settings.iter().map(plan).collect::<Result<_>>()?,
            tokens: visits as u64 * tokens(options),
            tests: options.tests.clone(),
            repetitions: options.repetitions,
            model: model.name,
            visits,
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
        let Self { model, tests, visits, tokens, repetitions, plans } = self;
        let tests: Vec<_> = tests.iter().map(Test::to_string).collect();
        writeln!(f, "{model}: {}", tests.join(", "))?;
        writeln!(
            f,
            "each once untimed and {} timed, in {} of {}: {}",
            counted((*repetitions).into(), "time"),
            counted(*visits as u64, "visit"),
            counted(plans.len() as u64, "setting"),
            counted(*tokens, "token"),
        )?;
        for (setting, plan) in plans {
            write!(f, "  {setting}: a context of {}", plan.context)?;
            for heap in &plan.heaps {
                write!(f, ", {:.2} MiB {}", heap.planned as f64 / 1_048_576.0, heap.name)?;
            }
            writeln!(f, "{}", if plan.fits { "" } else { ", which does not fit" })?;
        }
        Ok(())
    }
}
