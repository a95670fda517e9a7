//! Rows as SQL, as llama-bench writes them: a table that is made if it is not there, and a line for
//! each row. The table has another name, since it has other columns.

use super::{Row, Subject, table::flat};
use serde_json::Value;
use std::fmt::Write;

const TABLE: &str = "engine_bench";

/// `rows` as SQL statements: the fields of their JSON but for lists.
pub fn sql(rows: &[(&Subject, &Row)]) -> String {
    let rows: Vec<_> = rows.iter().map(|(subject, row)| flat(subject, row)).collect();
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!("CREATE TABLE IF NOT EXISTS {TABLE} (\n");
    for (i, (name, _)) in first.iter().enumerate() {
        let ty = rows.iter().find_map(|row| ty(&row[i].1)).unwrap_or("TEXT");
        let comma = if i + 1 < first.len() { "," } else { "" };
        _ = writeln!(text, "  {name} {ty}{comma}");
    }
    text.push_str(");\n\n");
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    for row in &rows {
        let values: Vec<_> = row.iter().map(|(_, value)| literal(value)).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        _ = writeln!(text, "INSERT INTO {TABLE} ({names}) VALUES ({values});");
    }
    text
}

/// The type of a column that holds `value`; none tells nothing.
fn ty(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null => None,
        Value::Number(n) if n.is_f64() => Some("REAL"),
        Value::Number(_) | Value::Bool(_) => Some("INTEGER"),
        _ => Some("TEXT"),
    }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Bool(is) => u8::from(*is).to_string(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Kind, Test, row::tests::*};

    #[test]
    fn every_row_has_a_value_for_every_column() {
        let subject = Subject { model: "it's; DROP".into(), ..Subject::default() };
        let test = Test { kind: Kind::Both(4, 2), depth: 8 };
        // Figures that the first row has not have their type from another.
        let rows = [row(test, setting(8), &[0]), row(test, setting(8), &[1000, 2000])];
        let text = sql(&rows.each_ref().map(|row| (&subject, row)));
        let (table, lines) = text.split_once(");\n\n").unwrap();
        assert!(table.starts_with("CREATE TABLE IF NOT EXISTS engine_bench (\n"));
        for column in ["n_prompt INTEGER", "avg_ts REAL", "model_type TEXT", "flash_attn INTEGER"] {
            assert!(table.contains(&format!("  {column},\n")), "{table}");
        }
        let columns = table.lines().count() - 1;
        for line in lines.lines() {
            let (names, values) = line.split_once(") VALUES (").unwrap();
            assert_eq!(names.split(", ").count(), columns);
            assert!(values.contains("'it''s; DROP'") && values.ends_with(");"), "{values}");
            assert!(!values.to_lowercase().contains("nan"), "{values}");
        }
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(sql(&[]), "");
    }
}
