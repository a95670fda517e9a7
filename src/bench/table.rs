//! Rows as a Markdown table in llama-bench's columns and ours, and as CSV.

use super::{
    Row, Subject,
    stored::{device, json, kv_host, ngram},
};
use serde_json::Value;
use std::fmt::Write;

/// A column of settings, shown where it has a value that is not the default.
struct Column {
    name: &'static str,
    default: &'static str,
    value: fn(&Subject, &Row) -> String,
}

const COLUMNS: [Column; 9] = [
    Column { name: "n_batch", default: "2048", value: |_, r| r.setting.batch.to_string() },
    Column { name: "n_ubatch", default: "512", value: |_, r| r.setting.ubatch.to_string() },
    Column { name: "type_k", default: "f16", value: |_, r| r.setting.cache_k.to_string() },
    Column { name: "type_v", default: "f16", value: |_, r| r.setting.cache_v.to_string() },
    Column { name: "kv_host", default: "auto", value: |_, r| kv_host(r.setting.kv_host).into() },
    Column {
        name: "n_cpu_moe",
        default: "0",
        value: |s, r| r.setting.experts_host.min(s.layers).to_string(),
    },
    Column { name: "ngram", default: "disk", value: |s, _| ngram(s.ngram).into() },
    Column { name: "dev", default: "auto", value: |s, _| device(s).into() },
    Column {
        name: "history",
        default: "prompt",
        value: |_, r| if r.synthetic { "synthetic" } else { "prompt" }.into(),
    },
];

/// A table of `rows`, of each the model that it is of.
pub fn markdown(rows: &[(&Subject, &Row)]) -> String {
    let differs = |c: &&Column| rows.iter().any(|(s, r)| (c.value)(s, r) != c.default);
    let columns: Vec<_> = COLUMNS.iter().filter(differs).collect();
    let files = rows.iter().any(|(subject, _)| subject.file != rows[0].0.file);
    let mut heads = vec!["model", "size", "params", "backend"];
    heads.extend(files.then_some("file"));
    heads.extend(columns.iter().map(|c| c.name));
    heads.extend(["test", "t/s", "read/token", "GB/s", "of copy", "dispatches"]);
    heads.extend(["encode ms", "submit ms", "wait ms", "notes"]);
    let mut lines = vec![heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>()];
    for (subject, row) in rows {
        let mut cells = vec![
            subject.model_type(),
            format!("{:.2} GiB", subject.size as f64 / (1_u64 << 30) as f64),
            format!("{:.2} B", subject.params as f64 / 1e9),
            subject.backend.clone(),
        ];
        cells.extend(files.then(|| subject.file.clone()));
        cells.extend(columns.iter().map(|c| (c.value)(subject, row)));
        cells.push(row.test.to_string());
        cells.extend(figures(subject, row));
        cells.push(row.notes().join("; "));
        lines.push(cells.iter().map(|cell| cell.replace('|', "/")).collect());
    }
    let widths: Vec<usize> = (0..heads.len())
        .map(|i| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        let cells: Vec<_> = line.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        _ = writeln!(text, "| {} |", cells.join(" | "));
        if i == 0 {
            let rules: Vec<_> = widths.iter().map(|w| "-".repeat(*w)).collect();
            _ = writeln!(text, "| {} |", rules.join(" | "));
        }
    }
    text
}

/// Speed and what belongs to it; a dash for what there is not.
fn figures(subject: &Subject, row: &Row) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let speed = match row.speed() {
        _ if row.trial.fault.is_some() => Some("invalid".into()),
        Some(speed) if speed.count > 1 => {
            Some(format!("{:.2} ± {:.2}", speed.mean, speed.deviation))
        }
        speed => speed.map(|speed| format!("{:.2}", speed.mean)),
    };
    let share = row.bandwidth().zip(subject.copy).map(|(read, copy)| read / copy * 100.0);
    let ms = |ms: Option<f64>| or_dash(ms.map(|ms| format!("{ms:.3}")));
    [
        or_dash(speed),
        or_dash(row.read_bytes.map(|bytes| format!("{:.2} MiB", bytes as f64 / 1048576.0))),
        or_dash(row.bandwidth().map(|rate| format!("{:.2}", rate / 1e9))),
        or_dash(share.map(|share| format!("{share:.1} %"))),
        or_dash(row.trial.dispatches.map(|n| n.to_string())),
        ms(row.ms(|run| run.encode)),
        ms(row.ms(|run| run.submit)),
        ms(row.ms(|run| run.wait)),
    ]
}

/// The fields of a row's JSON but for lists, the comparison's among the others: the same of every
/// row.
pub(super) fn flat(subject: &Subject, row: &Row) -> Vec<(String, Value)> {
    let Value::Object(fields) = json(subject, row) else { return Vec::new() };
    let mut flat = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Array(_) => {}
            value if name == "comparison" => flat.extend(
                ["difference", "drift", "real"]
                    .map(|part| (part.to_owned(), value.get(part).cloned().unwrap_or_default())),
            ),
            value => flat.push((name, value)),
        }
    }
    flat
}

/// A table of `rows`: the fields of their JSON but for lists.
pub fn csv(rows: &[(&Subject, &Row)]) -> String {
    let mut text = String::new();
    for (i, (subject, row)) in rows.iter().enumerate() {
        let fields = flat(subject, row);
        if i == 0 {
            let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
            _ = writeln!(text, "{}", names.join(","));
        }
        let cells = fields.iter().map(|(_, value)| match value {
            Value::Null => String::new(),
            Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
            other => other.to_string(),
        });
        _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::{Comparison, Kind, Test, row::tests::*},
        ngram::Storage,
    };

    const TEST: Test = Test { kind: Kind::Generate(10), depth: 0 };

    #[test]
    fn llama_bench_columns_come_first_and_defaults_are_left_out() {
        let subject = Subject { model: "m".into(), copy: Some(1e9), ..Subject::default() };
        let mut row = row(TEST, setting(512), &[1000, 1000]);
        row.read_bytes = Some(50_000_000);
        let text = markdown(&[(&subject, &row)]);
        let mut lines = text.lines();
        let head: Vec<_> = lines.next().unwrap().split('|').map(str::trim).collect();
        assert_eq!(head[1..7], ["model", "size", "params", "backend", "test", "t/s"]);
        assert!(text.contains("| 10.00 ± 0.00 |") && text.contains("| 50.0 % "), "{text}");
        let wide = row_with_ubatch();
        assert!(markdown(&[(&subject, &wide)]).contains("n_ubatch"));
    }

    /// Known fault: two quantisations, and rows that cannot be compared, looked alike.
    #[test]
    fn files_weights_and_settings_are_told_where_they_differ() {
        let subject = |file: &str, weights: &str| Subject {
            model: "m".into(),
            file: file.into(),
            weights: weights.into(),
            ..Subject::default()
        };
        let (a, b) = (subject("a.gguf", "Q4_K_M"), subject("b.gguf", "Q8_0"));
        let row = row(TEST, setting(512), &[1000]);
        let one = markdown(&[(&a, &row)]);
        assert!(one.contains("| m Q4_K_M |") && !one.contains("a.gguf"), "{one}");
        for column in COLUMNS {
            assert!(!one.contains(column.name), "{} in {one}", column.name);
        }
        let two = markdown(&[(&a, &row), (&b, &row)]);
        assert!(two.contains("| a.gguf |") && two.contains("| m Q8_0 "), "{two}");
        let mut other = Row { synthetic: true, ..row };
        other.setting.experts_host = 3;
        let far = Subject { layers: 9, device: Some("1".into()), ngram: Storage::Ram, ..a };
        let text = markdown(&[(&far, &other)]);
        for word in ["n_cpu_moe | ngram | dev | history", "| 3 ", "| ram ", "| 1 ", "| synthetic "]
        {
            assert!(text.contains(word), "{word} is not in {text}");
        }
    }

    /// Known fault: CSV and SQL left the comparison out.
    #[test]
    fn a_comparison_is_in_the_same_places_of_every_row() {
        let plain = row(TEST, setting(512), &[1000]);
        let comparison = Some(Comparison { difference: 0.25, drift: 0.125, real: true });
        let compared = Row { comparison, ..plain.clone() };
        let [none, some] = [plain, compared].map(|row| flat(&Subject::default(), &row));
        let names = |row: &[(String, Value)]| row.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&none), names(&some));
        for (name, value) in [("difference", 0.25.into()), ("drift", 0.125.into())] {
            let of = |row: &[(String, Value)]| row.iter().find(|f| f.0 == name).unwrap().1.clone();
            assert_eq!((of(&none), of(&some)), (Value::Null, value));
        }
        assert!(some.contains(&("real".to_owned(), true.into())));
    }

    fn row_with_ubatch() -> Row {
        row(TEST, setting(64), &[1])
    }

    /// Known fault: NaN and infinity were printed.
    #[test]
    fn nothing_measured_prints_dashes() {
        for times in [&[][..], &[0]] {
            let row = row(TEST, setting(512), times);
            let rows = [(&Subject::default(), &row)];
            for text in [markdown(&rows), csv(&rows)] {
                let text = text.to_lowercase();
                assert!(!text.contains("nan") && !text.contains("inf,"), "{text}");
                assert!(!text.contains(" inf "), "{text}");
            }
        }
    }

    #[test]
    fn csv_lines_have_a_value_for_every_name() {
        let row = row(TEST, setting(512), &[1000]);
        let text = csv(&[(&Subject::default(), &row), (&Subject::default(), &row)]);
        let counts: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(counts.len(), 3);
        assert!(counts.iter().all(|n| *n == counts[0]), "{text}");
    }
}
