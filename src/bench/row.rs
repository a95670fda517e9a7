//! A row of the result: what all visits of a setting say of one test.

use super::{
    Comparison, Kind, Options, Run, Setting, Spread, Stored, Subject, Test, Trial, Visit, trial,
};

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
    /// Whether the tokens before were random state instead of a prompt.
    pub synthetic: bool,
    /// Whether a reference had the row; none without a reference.
    pub checked: Option<bool>,
    /// How it compares with the row of the first model and setting, where both are valid.
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
        let unchecked = self.checked == Some(false);
        let unchecked = unchecked.then(|| "not in the reference, so not checked".to_owned());
        let compared = self.comparison.map(|c| {
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
        fault
            .chain(unchecked)
            .chain(compared)
            .chain(self.trial.load.disturbance())
            .chain(again)
            .collect()
    }

    /// Makes the row invalid if an earlier run of the same test said something else.
    pub(super) fn check(&mut self, subject: &Subject, stored: &Stored) {
        let expected = stored.greedy(subject, self);
        self.checked = Some(expected.is_some());
        if let (None, Some(expected)) = (&self.trial.fault, expected) {
            self.trial.fault = trial::differs(expected, &self.trial.greedy, "the reference file");
        }
    }
}

/// Tokens a second of each run, by tokens that it really processed.
fn rates(runs: &[Run]) -> Vec<f64> {
    runs.iter().filter_map(Run::rate).collect()
}

/// Rows of `visits`, settings within tests within models, checked against the `reference`. `fixed`
/// are the bytes that a token reads whatever its depth, by case.
pub(super) fn rows(
    visits: &[Visit],
    options: &Options,
    subjects: &[Subject],
    fixed: &[u64],
    reference: Option<&Stored>,
) -> Vec<(Subject, Row)> {
    let settings = options.settings.len();
    let mut rows: Vec<(Subject, Row)> = Vec::new();
    for (m, subject) in subjects.iter().enumerate() {
        for (t, &test) in options.tests.iter().enumerate() {
            for (s, &setting) in options.settings.iter().enumerate() {
                let case = m * settings + s;
                let own = visits.iter().filter(|visit| visit.case == case);
                let trial = merged(own.map(|visit| &visit.trials[t]));
                let read_bytes = match test.kind {
                    Kind::Generate(_) => fixed.get(case).map(|fixed| fixed + trial.cache_bytes),
                    Kind::Prompt(_) | Kind::Both(..) => None,
                };
                let synthetic = options.synthetic_history && test.depth > 0;
                let (checked, comparison) = (None, None);
                let mut row =
                    Row { test, setting, trial, read_bytes, synthetic, checked, comparison };
                if let Some(stored) = reference {
                    row.check(subject, stored);
                }
                // Nothing is compared with itself, nor with what means nothing.
                let valid = |row: &Row| row.trial.fault.is_none();
                if rows.get(t * settings).is_some_and(|(_, first)| valid(first)) && valid(&row) {
                    row.comparison = compared(visits, case, t);
                }
                rows.push((subject.clone(), row));
            }
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

/// `case` beside the first one, whose visits are just before and after it.
fn compared(visits: &[Visit], case: usize, t: usize) -> Option<Comparison> {
    let at = visits.iter().position(|visit| visit.case == case && case > 0)?;
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
        let kv_host = KvHost::Auto;
        Setting { batch: 2048, ubatch, cache_k, cache_v, kv_host, experts_host: 0 }
    }

    pub(crate) fn row(test: Test, setting: Setting, times: &[u64]) -> Row {
        let run = |ms: &u64| Run {
            tokens: test.tokens(),
            time: Duration::from_millis(*ms),
            ..Run::default()
        };
        let runs = times.iter().map(run).collect();
        let trial = Trial { runs, greedy: vec![1, 2], ..Trial::default() };
        Row {
            test,
            setting,
            trial,
            read_bytes: None,
            synthetic: false,
            checked: None,
            comparison: None,
        }
    }

    const TEST: Test = Test { kind: Kind::Generate(10), depth: 0 };

    fn visit(case: usize, ms: u64) -> Visit {
        Visit { case, trials: vec![row(TEST, setting(1), &[ms]).trial] }
    }

    fn options(settings: &[u32]) -> Options {
        Options {
            tests: vec![TEST],
            settings: settings.iter().map(|ubatch| setting(*ubatch)).collect(),
            repetitions: 1,
            synthetic_history: false,
            delay: Duration::ZERO,
            engine: Default::default(),
        }
    }

    /// Rows of one model.
    fn rows_of(visits: &[Visit], settings: &[u32], reference: Option<&Stored>) -> Vec<Row> {
        let rows = rows(visits, &options(settings), &[Subject::default()], &[5, 6, 7], reference);
        rows.into_iter().map(|(_, row)| row).collect()
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
        let visits = [visit(0, 1000), visit(1, 500), visit(0, 1000), visit(2, 990), visit(0, 2000)];
        let rows = rows_of(&visits, &[1, 2, 3], None);
        assert_eq!(rows[0].trial.runs.len(), 3);
        assert_eq!((rows[0].comparison, rows[0].read_bytes), (None, Some(5)));
        let (fast, drifted) = (rows[1].comparison.unwrap(), rows[2].comparison.unwrap());
        assert!(fast.real && (fast.difference - 1.0).abs() < 1e-9 && fast.drift < 1e-9);
        assert!(!drifted.real && drifted.drift > 0.6, "{drifted:?}");
        assert!(rows[2].notes()[0].contains("no difference within noise"));
    }

    #[test]
    fn models_are_compared_as_settings_are() {
        let visits = [visit(0, 1000), visit(1, 500), visit(0, 1000)];
        let subjects = ["a", "b"].map(|file| Subject { file: file.into(), ..Subject::default() });
        let rows = rows(&visits, &options(&[1]), &subjects, &[5, 6], None);
        let files: Vec<_> = rows.iter().map(|(subject, _)| subject.file.as_str()).collect();
        assert_eq!(files, ["a", "b"]);
        assert_eq!((rows[0].1.comparison, rows[1].1.read_bytes), (None, Some(6)));
        assert!(rows[1].1.comparison.unwrap().real);
    }

    /// Known fault: the speed of wrong output was compared with that of the right one.
    #[test]
    fn nothing_is_compared_with_an_invalid_row() {
        let visits = || [visit(0, 1000), visit(1, 500), visit(0, 1000)];
        let compared = |visits: &[Visit], reference: Option<&Stored>| {
            rows_of(visits, &[1, 2], reference)[1].comparison.is_some()
        };
        assert!(compared(&visits(), None));
        for wrong in 0..3 {
            let mut visits = visits();
            visits[wrong].trials[0].fault = Some("wrong".into());
            assert!(!compared(&visits, None), "visit {wrong}");
        }
        let good = rows_of(&visits(), &[1, 2], None);
        for wrong in 0..2 {
            let mut reference = good.clone();
            let stored = |rows: &[Row]| Stored::of(&Subject::default(), rows);
            assert!(compared(&visits(), Some(&stored(&reference))));
            reference[wrong].trial.greedy[0] ^= 1;
            assert!(!compared(&visits(), Some(&stored(&reference))), "row {wrong}");
        }
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
