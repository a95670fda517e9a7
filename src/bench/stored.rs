//! Rows as JSON, for programs and as the reference of a later run.

use super::{Comparison, Kind, Load, Row, Run, Spread, Subject};
use crate::{Error, Result, kv::KvHost, text::strftime};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, time::Duration};

/// What a row is of: its test and setting, in llama-bench's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    model_size: u64,
    model_n_params: u64,
    n_batch: u32,
    n_ubatch: u32,
    type_k: String,
    type_v: String,
    kv_host: String,
    n_prompt: u32,
    n_gen: u32,
    n_depth: u32,
}

impl Key {
    fn of(subject: &Subject, row: &Row) -> Self {
        let (n_prompt, n_gen) = match row.test.kind {
            Kind::Prompt(n) => (n, 0),
            Kind::Generate(n) => (0, n),
            Kind::Both(prompt, generate) => (prompt, generate),
        };
        Self {
            model_size: subject.size,
            model_n_params: subject.params,
            n_batch: row.setting.batch,
            n_ubatch: row.setting.ubatch,
            type_k: row.setting.cache_k.to_string(),
            type_v: row.setting.cache_v.to_string(),
            kv_host: kv_host(row.setting.kv_host).to_owned(),
            n_prompt,
            n_gen,
            n_depth: row.test.depth,
        }
    }
}

/// The value of `--kv-host`.
pub(super) fn kv_host(wish: KvHost) -> &'static str {
    match wish {
        KvHost::Auto => "auto",
        KvHost::On => "on",
        KvHost::Off => "off",
    }
}

/// llama-bench's fields as far as they mean something here, then ours.
#[derive(Serialize)]
struct Record {
    build: &'static str,
    gpu_info: String,
    backends: String,
    model_type: String,
    #[serde(flatten)]
    key: Key,
    test: String,
    test_time: String,
    avg_ns: Option<f64>,
    stddev_ns: Option<f64>,
    avg_ts: Option<f64>,
    stddev_ts: Option<f64>,
    read_bytes_per_token: Option<u64>,
    read_bytes_per_second: Option<f64>,
    copy_bytes_per_second: Option<f64>,
    share_of_copy: Option<f64>,
    dispatches_per_token: Option<usize>,
    encode_ms_per_token: Option<f64>,
    submit_ms_per_token: Option<f64>,
    wait_ms_per_token: Option<f64>,
    invalid: Option<String>,
    #[serde(flatten)]
    load: Load,
    repeated: u32,
    comparison: Option<Comparison>,
    samples_ns: Vec<u64>,
    samples_tokens: Vec<u32>,
    greedy: Vec<u32>,
}

/// A row as one JSON object; figures that there are not are null.
pub fn json(subject: &Subject, row: &Row) -> serde_json::Value {
    let runs = &row.trial.runs;
    let ns = |run: &Run| u64::try_from(run.time.as_nanos()).unwrap_or(u64::MAX);
    let samples_ns: Vec<u64> = runs.iter().map(ns).collect();
    let speed = row.speed();
    let times: Vec<f64> = samples_ns.iter().map(|ns| *ns as f64).collect();
    let time = speed.and_then(|_| Spread::of(&times));
    let valid = row.trial.fault.is_none();
    let ms = |part: fn(&Run) -> Duration| row.ms(part).filter(|_| valid);
    let record = Record {
        build: env!("CARGO_PKG_VERSION"),
        gpu_info: subject.gpu.clone(),
        backends: subject.backend.clone(),
        model_type: subject.model.clone(),
        key: Key::of(subject, row),
        test: row.test.to_string(),
        test_time: strftime::now("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default(),
        avg_ns: time.map(|time| time.mean),
        stddev_ns: time.map(|time| time.deviation),
        avg_ts: speed.map(|speed| speed.mean),
        stddev_ts: speed.map(|speed| speed.deviation),
        read_bytes_per_token: row.read_bytes,
        read_bytes_per_second: row.bandwidth(),
        copy_bytes_per_second: subject.copy,
        share_of_copy: row.bandwidth().zip(subject.copy).map(|(read, copy)| read / copy),
        dispatches_per_token: row.trial.dispatches,
        encode_ms_per_token: ms(|run| run.encode),
        submit_ms_per_token: ms(|run| run.submit),
        wait_ms_per_token: ms(|run| run.wait),
        invalid: row.trial.fault.clone(),
        load: row.trial.load,
        repeated: row.trial.repeated,
        comparison: row.comparison,
        samples_ns,
        samples_tokens: runs.iter().map(|run| run.tokens).collect(),
        greedy: row.trial.greedy.clone(),
    };
    serde_json::to_value(record).unwrap_or_default()
}

/// The greedy tokens of an earlier run, for the rows that it had.
#[derive(Clone, Debug)]
pub struct Stored {
    subject: Subject,
    rows: Vec<StoredRow>,
}

#[derive(Clone, Debug, Deserialize)]
struct StoredRow {
    #[serde(flatten)]
    key: Key,
    invalid: Option<String>,
    greedy: Vec<u32>,
}

impl Stored {
    /// What `-o json` wrote to the file at `path`, for rows of `subject`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Usage`] for a file that is something else.
    pub fn read(path: &Path, subject: &Subject) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let rows = serde_json::from_str(&text).map_err(|e| {
            Error::Usage(format!("{} is not what bench -o json writes: {e}", path.display()))
        })?;
        Ok(Self { subject: subject.clone(), rows })
    }

    pub(super) fn greedy(&self, row: &Row) -> Option<&[u32]> {
        let key = Key::of(&self.subject, row);
        let found = self.rows.iter().find(|stored| stored.key == key && stored.invalid.is_none());
        found.map(|stored| stored.greedy.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Test, row::tests::*};

    #[test]
    fn a_row_is_checked_against_the_same_row_of_a_file() {
        let subject = Subject { size: 7, ..Subject::default() };
        let test = Test { kind: Kind::Generate(2), depth: 5 };
        let good = row(test, setting(8), &[10]);
        let rows = serde_json::from_value(serde_json::json!([json(&subject, &good)])).unwrap();
        let stored = Stored { subject, rows };
        let mut same = good.clone();
        same.check(&stored);
        assert_eq!(same.trial.fault, None);
        let mut wrong = good.clone();
        wrong.trial.greedy = vec![1, 3];
        wrong.check(&stored);
        assert_eq!(wrong.trial.fault.unwrap(), "token 1 differs from that of the reference file");
        let mut other = row(Test { depth: 6, ..test }, setting(8), &[10]);
        other.trial.greedy = vec![9];
        other.check(&stored);
        assert_eq!(other.trial.fault, None);
    }

    /// Known fault: NaN and infinity were printed.
    #[test]
    fn what_there_is_not_is_null() {
        let test = Test { kind: Kind::Generate(2), depth: 0 };
        for times in [&[][..], &[0], &[0, 0]] {
            let value = json(&Subject::default(), &row(test, setting(8), times));
            assert!(value["avg_ts"].is_null() && value["share_of_copy"].is_null());
        }
    }
}
