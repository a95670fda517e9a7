//! A row of the result: what all visits of a setting say of one test.

use super::{
    Comparison, Kind, Options, Run, Setting, Spread, Stored, Test, Trial, Visit, rate, trial,
};
use crate::{Gguf, Result, gpu::AdapterReport, plan::Model};

/// What was measured, and on what.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The model's name.
    pub model: String,
    /// Bytes of its tensors.
    pub size: u64,
    /// Elements of its tensors.
    pub params: u64,
    /// Graphics API.
    pub backend: String,
    /// The adapter's name and driver.
    pub gpu: String,
    /// Bytes a second of a copy within the device's memory, reads and writes counted, as measured
    /// just before; none where there was no room for it.
    pub copy: Option<f64>,
}

impl Subject {
    pub(super) fn new(
        gguf: &Gguf,
        model: &Model,
        device: &AdapterReport,
        copy: Option<f64>,
    ) -> Result<Self> {
        let name = gguf.metadata().optional::<&str>("general.name")?.unwrap_or(&model.name);
        let elements = |dims: &[u64; 4]| dims.iter().product::<u64>();
        Ok(Self {
            model: format!("{} {name}", model.config.arch.name()),
            size: model.tensors.iter().map(|t| t.file_bytes()).sum(),
            params: model.tensors.iter().map(|t| elements(&t.dims)).sum(),
            backend: device.backend.clone(),
            gpu: format!("{}, {}", device.name, device.driver),
            copy,
        })
    }
}

/// One test with one setting.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was timed.
    pub test: Test,
    /// And how.
    pub setting: Setting,
    /// All runs of it. A fault makes the row invalid.
    pub trial: Trial,
    /// Bytes that decoding a token reads: weights, state read and written, keys and values, pooled
    /// keys.
    pub read_bytes: Option<u64>,
    /// How it compares with the first setting's row.
    pub comparison: Option<Comparison>,
}

impl Row {
    /// Tokens a second; none of an invalid row, nor where nothing was timed.
    pub fn speed(&self) -> Option<Spread> {
        match self.trial.fault {
            Some(_) => None,
            None => Spread::of(&rates(&self.trial.runs)),
        }
    }

    /// Bytes a second read.
    pub fn bandwidth(&self) -> Option<f64> {
        Some(self.read_bytes? as f64 * self.speed()?.mean)
    }

    /// Milliseconds a token on average of one part of the runs' times.
    pub fn ms(&self, part: fn(&Run) -> std::time::Duration) -> Option<f64> {
        let sum: std::time::Duration = self.trial.runs.iter().map(part).sum();
        let tokens: u32 = self.trial.runs.iter().map(|run| run.tokens).sum();
        (tokens > 0).then(|| sum.as_secs_f64() * 1e3 / f64::from(tokens))
    }

    /// What to know of the row.
    pub fn notes(&self) -> Vec<String> {
        let fault = self.trial.fault.iter().map(|fault| format!("INVALID: {fault}"));
        let compared = self.comparison.filter(|_| self.trial.fault.is_none()).map(|c| {
            let (difference, drift) = (c.difference * 100.0, c.drift * 100.0);
            match c.real {
                true => format!("{difference:+.1} % (drift {drift:.1} %)"),
                false => {
                    format!("no difference within noise ({difference:+.1} %, drift {drift:.1} %)")
                }
            }
        });
        let again = Some(self.trial.repeated).filter(|n| *n > 0);
        let again = again.map(|n| format!("{n} disturbed runs do not count"));
        fault.chain(compared).chain(self.trial.load.disturbance()).chain(again).collect()
    }

    /// Makes the row invalid if an earlier run of the same test said something else.
    pub fn check(&mut self, stored: &Stored) {
        if let (None, Some(expected)) = (&self.trial.fault, stored.greedy(self)) {
            self.trial.fault = trial::differs(expected, &self.trial.greedy, "the reference file");
        }
    }
}

/// Tokens a second of each run, by tokens that it really processed.
fn rates(runs: &[Run]) -> Vec<f64> {
    runs.iter().filter_map(|run| rate(run.tokens.into(), run.time.as_secs_f64())).collect()
}

/// Rows of `visits`, settings within tests. `fixed` are the bytes that a token reads whatever its
/// depth, by setting.
pub(super) fn rows(visits: &[Visit], options: &Options, fixed: &[u64]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (t, test) in options.tests.iter().enumerate() {
        for (s, setting) in options.settings.iter().enumerate() {
            let own = visits.iter().filter(|visit| visit.setting == s);
            let trial = merged(own.map(|visit| &visit.trials[t]));
            let read_bytes = match test.kind {
                Kind::Generate(_) => fixed.get(s).map(|fixed| fixed + trial.cache_bytes),
                Kind::Prompt(_) | Kind::Both(..) => None,
            };
            let comparison = compared(visits, s, t);
            rows.push(Row { test: *test, setting: *setting, trial, read_bytes, comparison });
        }
    }
    rows
}

/// All visits of a row together.
fn merged<'a>(mut trials: impl Iterator<Item = &'a Trial>) -> Trial {
    let mut all = trials.next().cloned().unwrap_or_default();
    for trial in trials {
        all.runs.extend_from_slice(&trial.runs);
        all.load = all.load.worse(trial.load);
        all.repeated += trial.repeated;
        all.fault = all
            .fault
            .or_else(|| trial.fault.clone())
            .or_else(|| trial::differs(&all.greedy, &trial.greedy, "an earlier visit"));
    }
    all
}

/// Setting `s` beside the first one, whose visits are just before and after it.
fn compared(visits: &[Visit], s: usize, t: usize) -> Option<Comparison> {
    let at = visits.iter().position(|visit| visit.setting == s && s > 0)?;
    let [before, other, after] = [at - 1, at, at + 1].map(|v| visits.get(v));
    let rates = |visit: &Visit| rates(&visit.trials[t].runs);
    Comparison::of(&rates(before?), &rates(other?), &rates(after?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kv::{KvHost, KvType};
    use std::time::Duration;

    pub(crate) fn setting(ubatch: u32) -> Setting {
        let (cache_k, cache_v) = (KvType::F16, KvType::F16);
        Setting { batch: 2048, ubatch, cache_k, cache_v, kv_host: KvHost::Auto }
    }

    pub(crate) fn row(test: Test, setting: Setting, times: &[u64]) -> Row {
        let run = |ms: &u64| Run {
            tokens: test.tokens(),
            time: Duration::from_millis(*ms),
            ..Run::default()
        };
        let runs = times.iter().map(run).collect();
        let trial = Trial { runs, greedy: vec![1, 2], ..Trial::default() };
        Row { test, setting, trial, read_bytes: None, comparison: None }
    }

    fn visit(setting: usize, ms: u64) -> Visit {
        let test = Test { kind: Kind::Generate(10), depth: 0 };
        Visit { setting, trials: vec![row(test, super::tests::setting(1), &[ms]).trial] }
    }

    /// Known fault: speed without right output was reported as a result.
    #[test]
    fn an_invalid_row_has_no_speed_and_says_why() {
        let mut row = row(Test { kind: Kind::Prompt(8), depth: 0 }, setting(8), &[500, 500]);
        assert!((row.speed().unwrap().mean - 16.0).abs() < 1e-9);
        row.read_bytes = Some(1 << 30);
        row.trial.fault = Some("token 3 differs".into());
        assert_eq!((row.speed(), row.bandwidth()), (None, None));
        assert_eq!(row.notes(), ["INVALID: token 3 differs"]);
    }

    /// Known fault: prompt speed counted tokens that were not processed.
    #[test]
    fn speed_counts_the_tokens_of_the_run() {
        let mut row = row(Test { kind: Kind::Prompt(100), depth: 0 }, setting(8), &[1000]);
        row.trial.runs[0].tokens = 40;
        assert!((row.speed().unwrap().mean - 40.0).abs() < 1e-9);
        row.trial.runs[0].tokens = 0;
        assert_eq!((row.speed(), row.ms(|run| run.time)), (None, None));
    }

    #[test]
    fn settings_are_compared_with_the_visits_around_them() {
        let test = Test { kind: Kind::Generate(10), depth: 0 };
        let options = Options {
            tests: vec![test],
            settings: vec![setting(1), setting(2), setting(3)],
            repetitions: 1,
            synthetic_history: false,
            engine: Default::default(),
        };
        let visits = [visit(0, 1000), visit(1, 500), visit(0, 1000), visit(2, 990), visit(0, 2000)];
        let rows = rows(&visits, &options, &[5, 6, 7]);
        assert_eq!(rows[0].trial.runs.len(), 3);
        assert_eq!((rows[0].comparison, rows[0].read_bytes), (None, Some(5)));
        let (fast, drifted) = (rows[1].comparison.unwrap(), rows[2].comparison.unwrap());
        assert!(fast.real && (fast.difference - 1.0).abs() < 1e-9 && fast.drift < 1e-9);
        assert!(!drifted.real && drifted.drift > 0.6, "{drifted:?}");
        assert!(rows[2].notes()[0].contains("no difference within noise"));
    }

    #[test]
    fn visits_that_disagree_make_a_row_invalid() {
        let mut other = visit(0, 1);
        other.trials[0].greedy = vec![1, 9];
        let first = visit(0, 1);
        let all = merged([&first.trials[0], &other.trials[0]].into_iter());
        assert_eq!(all.fault.unwrap(), "token 1 differs from that of an earlier visit");
    }
}
