//! Rows as JSON, for programs and as the reference of a later run.

use super::{Comparison, Kind, Load, Row, Run, Spread, Subject};
use crate::{Error, Result, kv::KvHost, ngram::Storage, text::strftime};
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
    /// Not in files of earlier versions.
    #[serde(default)]
    synthetic_history: bool,
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
            synthetic_history: row.synthetic,
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

/// The value of `--ngram`.
pub(super) fn ngram(storage: Storage) -> &'static str {
    match storage {
        Storage::Disk => "disk",
        Storage::Ram => "ram",
    }
}

/// The value of `--device`.
pub(super) fn device(subject: &Subject) -> &str {
    subject.device.as_deref().unwrap_or("auto")
}

/// llama-bench's fields as far as they mean something here, then ours.
#[derive(Serialize)]
struct Record {
    build: &'static str,
    cpu_info: String,
    gpu_info: String,
    backends: String,
    model_filename: String,
    model_type: String,
    #[serde(flatten)]
    key: Key,
    n_gpu_layers: u32,
    n_cpu_moe: u32,
    no_kv_offload: bool,
    flash_attn: bool,
    devices: String,
    ngram: &'static str,
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
    in_reference: Option<bool>,
    #[serde(flatten)]
    load: Load,
    repeated: u32,
    comparison: Option<Comparison>,
    samples_ns: Vec<u64>,
    samples_ts: Vec<Option<f64>>,
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
        cpu_info: subject.cpu.clone(),
        gpu_info: subject.gpu.clone(),
        backends: subject.backend.clone(),
        model_filename: subject.file.clone(),
        model_type: subject.model_type(),
        key: Key::of(subject, row),
        n_gpu_layers: subject.layers,
        n_cpu_moe: row.setting.experts_host.min(subject.layers),
        no_kv_offload: row.setting.kv_host == KvHost::On,
        flash_attn: true,
        devices: device(subject).to_owned(),
        ngram: ngram(subject.ngram),
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
        in_reference: row.checked,
        load: row.trial.load,
        repeated: row.trial.repeated,
        comparison: row.comparison,
        samples_ns,
        samples_ts: runs.iter().map(|run| run.rate().filter(|_| valid)).collect(),
        samples_tokens: runs.iter().map(|run| run.tokens).collect(),
        greedy: row.trial.greedy.clone(),
    };
    serde_json::to_value(record).unwrap_or_default()
}

/// The greedy tokens of an earlier run, for the rows that it had.
#[derive(Clone, Debug)]
pub struct Stored(Vec<StoredRow>);

#[derive(Clone, Debug, Deserialize)]
struct StoredRow {
    #[serde(flatten)]
    key: Key,
    invalid: Option<String>,
    greedy: Vec<u32>,
}

impl Stored {
    /// What `-o json` wrote to the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Usage`] for a file that is something else.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let rows = serde_json::from_str(&text).map_err(|e| {
            Error::Usage(format!("{} is not what bench -o json writes: {e}", path.display()))
        })?;
        Ok(Self(rows))
    }

    /// What the same row said, if it was there and valid.
    pub(super) fn greedy(&self, subject: &Subject, row: &Row) -> Option<&[u32]> {
        let key = Key::of(subject, row);
        let found = self.0.iter().find(|stored| stored.key == key && stored.invalid.is_none());
        found.map(|stored| stored.greedy.as_slice())
    }
}

#[cfg(test)]
impl Stored {
    /// What a file of `rows` holds.
    pub(super) fn of(subject: &Subject, rows: &[Row]) -> Self {
        let rows = rows.iter().map(|row| serde_json::from_value(json(subject, row)).unwrap());
        Self(rows.collect())
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
        let stored = Stored::of(&subject, std::slice::from_ref(&good));
        let mut same = good.clone();
        same.check(&subject, &stored);
        assert_eq!((same.checked, &same.trial.fault), (Some(true), &None));
        assert!(same.notes().is_empty());
        let mut wrong = good.clone();
        wrong.trial.greedy = vec![1, 3];
        wrong.check(&subject, &stored);
        assert_eq!(wrong.trial.fault.unwrap(), "token 1 differs from that of the reference file");
    }

    /// Known fault: rows that no file had passed without a word, and a history of random state was
    /// checked against a real one.
    #[test]
    fn a_row_that_the_file_has_not_says_that_it_is_not_checked() {
        let subject = Subject { size: 7, ..Subject::default() };
        let test = Test { kind: Kind::Generate(2), depth: 5 };
        let good = row(test, setting(8), &[10]);
        let stored = Stored::of(&subject, std::slice::from_ref(&good));
        let deeper = row(Test { depth: 6, ..test }, setting(8), &[10]);
        let synthetic = Row { synthetic: true, ..good };
        for mut other in [deeper, synthetic] {
            other.trial.greedy = vec![9];
            other.check(&subject, &stored);
            assert_eq!((other.checked, &other.trial.fault), (Some(false), &None));
            assert_eq!(other.notes(), ["not in the reference, so not checked"]);
        }
    }

    /// Known fault: two quantisations of a model, and settings beside those compared, looked alike.
    #[test]
    fn a_row_tells_its_file_weights_and_settings() {
        let subject = Subject {
            model: "arch name".into(),
            weights: "Q4_K_M".into(),
            file: "some.gguf".into(),
            layers: 9,
            ngram: Storage::Ram,
            device: Some("1".into()),
            ..Subject::default()
        };
        let test = Test { kind: Kind::Generate(2), depth: 8 };
        let mut row = row(test, setting(8), &[1000, 500]);
        row.synthetic = true;
        row.setting.experts_host = u32::MAX;
        let value = json(&subject, &row);
        for (name, expected) in [
            ("model_filename", "some.gguf".into()),
            ("model_type", "arch name Q4_K_M".into()),
            ("synthetic_history", true.into()),
            ("n_cpu_moe", 9.into()),
            ("n_gpu_layers", 9.into()),
            ("ngram", "ram".into()),
            ("devices", "1".into()),
            ("samples_ts", serde_json::json!([2.0, 4.0])),
        ] {
            assert_eq!(value[name], expected, "{name}");
        }
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
