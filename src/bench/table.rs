//! Rows as a Markdown table in llama-bench's columns and ours, and as CSV.

use super::{
    Row, Setting, Subject,
    stored::{json, kv_host},
};
use crate::kv::KvType;
use std::fmt::Write;

/// A column of settings, shown where it has several values or one that is not the default.
struct Column {
    name: &'static str,
    default: &'static str,
    value: fn(&Setting) -> String,
}

const COLUMNS: [Column; 5] = [
    Column { name: "n_batch", default: "2048", value: |s| s.batch.to_string() },
    Column { name: "n_ubatch", default: "512", value: |s| s.ubatch.to_string() },
    Column { name: "type_k", default: "f16", value: |s| KvType::name(s.cache_k).to_owned() },
    Column { name: "type_v", default: "f16", value: |s| KvType::name(s.cache_v).to_owned() },
    Column { name: "kv_host", default: "auto", value: |s| kv_host(s.kv_host).to_owned() },
];

/// A table of `rows`, of each the model that it is of.
pub fn markdown(rows: &[(&Subject, &Row)]) -> String {
    let differs = |c: &&Column| rows.iter().any(|(_, r)| (c.value)(&r.setting) != c.default);
    let columns: Vec<_> = COLUMNS.iter().filter(differs).collect();
    let mut heads = vec!["model", "size", "params", "backend"];
    heads.extend(columns.iter().map(|c| c.name));
    heads.extend(["test", "t/s", "read/token", "GB/s", "of copy", "dispatches"]);
    heads.extend(["encode ms", "submit ms", "wait ms", "notes"]);
    let mut lines = vec![heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>()];
    for (subject, row) in rows {
        let mut cells = vec![
            subject.model.clone(),
            format!("{:.2} GiB", subject.size as f64 / (1_u64 << 30) as f64),
            format!("{:.2} B", subject.params as f64 / 1e9),
            subject.backend.clone(),
        ];
        cells.extend(columns.iter().map(|c| (c.value)(&row.setting)));
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

/// The fields of a row's JSON but for lists and objects: the same of every row.
pub(super) fn flat(subject: &Subject, row: &Row) -> Vec<(String, serde_json::Value)> {
    let serde_json::Value::Object(fields) = json(subject, row) else { return Vec::new() };
    // `comparison` is an object in some rows and null in others.
    let is_flat = |(name, value): &(String, serde_json::Value)| {
        !value.is_array() && !value.is_object() && name != "comparison"
    };
    fields.into_iter().filter(is_flat).collect()
}

/// A table of `rows`: the fields of their JSON but for lists and objects.
pub fn csv(rows: &[(&Subject, &Row)]) -> String {
    let mut text = String::new();
    for (i, (subject, row)) in rows.iter().enumerate() {
        let fields = flat(subject, row);
        if i == 0 {
            let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
            _ = writeln!(text, "{}", names.join(","));
        }
        let cells = fields.iter().map(|(_, value)| match value {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
            other => other.to_string(),
        });
        _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Kind, Test, row::tests::*};

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
