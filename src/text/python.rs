//! Values as Python writes them: `str`, `repr` and `json.dumps`. Chat templates are written for
//! Jinja in Python, and the model was trained on its output (spec/tokenizer.md 5.1).

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting that is written, so that no value exhausts the stack.
const MAX_DEPTH: usize = 128;

type Written = Result<(), Error>;

/// Text of bounded length: a value may hold itself many times over and so be much longer than it is
/// large.
pub(super) struct Text {
    text: String,
    limit: usize,
    depth: usize,
}

impl Text {
    /// Empty, for up to `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { text: String::new(), limit, depth: 0 }
    }

    /// What was written.
    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// Runs `write` one level deeper.
    fn nested(&mut self, write: impl FnOnce(&mut Self) -> Written) -> Written {
        if self.depth == MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
        }
        self.depth += 1;
        write(self)?;
        self.depth -= 1;
        Ok(())
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > self.limit - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// `str(value)`; nothing for undefined, as Jinja prints it.
pub(super) fn write_value(out: &mut Text, value: &Value) -> Written {
    match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// `repr(value)`.
fn write_repr(out: &mut Text, value: &Value) -> Written {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined")?,
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_repr_str(out, value.as_str().unwrap_or_default())?,
        ValueKind::Seq if value.is_tuple() => {
            let single = value.len() == Some(1);
            write_items(out, ("(", if single { ",)" } else { ")" }), value)?;
        }
        ValueKind::Seq => write_items(out, ("[", "]"), value)?,
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, (key, item)) in entries(value).iter().enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                out.nested(|out| write_repr(out, key))?;
                out.write_str(": ")?;
                out.nested(|out| write_repr(out, item))?;
            }
            out.write_char('}')?;
        }
        // True, False, None and objects without a Python counterpart.
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

fn write_items(out: &mut Text, (open, close): (&str, &str), value: &Value) -> Written {
    out.write_str(open)?;
    for (index, item) in value.try_iter()?.enumerate() {
        out.write_str(if index > 0 { ", " } else { "" })?;
        out.nested(|out| write_repr(out, &item))?;
    }
    Ok(out.write_str(close)?)
}

/// The entries of a map in their order.
fn entries(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| {
        let item = map.get_item(&key).unwrap_or_default();
        (key, item)
    })
    .collect()
}

/// The shortest decimal that reads back; exponents below 1e-4 and from 1e16.
fn write_number(out: &mut Text, value: &Value) -> fmt::Result {
    let float = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float,
        _ => return write!(out, "{value}"),
    };
    if float.is_nan() {
        return out.write_str("nan");
    }
    // Debug switches to exponents where Python does, but writes 1e-5 for 1e-05.
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return out.write_str(&text);
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    write!(out, "{}e{sign}{exponent:0>2}", digits.strip_suffix(".0").unwrap_or(digits))
}

/// A quoted string literal: single quotes unless only those occur in it.
fn write_repr_str(out: &mut Text, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            '\0'..='\x1F' | '\x7F'..='\u{A0}' | '\u{AD}' => {
                write!(out, "\\x{:02x}", u32::from(c))?;
            }
            '\u{2028}' | '\u{2029}' | '\u{3000}' | '\u{FEFF}' | '\u{2000}'..='\u{200F}' => {
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

/// The arguments of Python's `json.dumps` that templates pass.
pub(super) struct JsonStyle {
    /// Text before an item, once a level; all on one line without it.
    pub(super) indent: Option<String>,
    /// Between items; between key and value.
    pub(super) separators: (String, String),
    /// Escape everything beyond ASCII.
    pub(super) ensure_ascii: bool,
    /// Keys in alphabetical order rather than as given.
    pub(super) sort_keys: bool,
}

impl JsonStyle {
    /// `json.dumps(value, ...)`; an error for values that JSON has no form for.
    pub(super) fn write(&self, out: &mut Text, value: &Value) -> Written {
        match value.kind() {
            ValueKind::None => out.write_str("null")?,
            ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" })?,
            ValueKind::Number => write_json_number(out, value)?,
            ValueKind::String => self.write_str(out, value.as_str().unwrap_or_default())?,
            ValueKind::Seq => {
                self.write_container(out, ('[', ']'), value.try_iter()?, |out, item| {
                    self.write(out, &item)
                })?;
            }
            ValueKind::Map => {
                let mut entries = entries(value);
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
                }
                self.write_container(out, ('{', '}'), entries.into_iter(), |out, entry| {
                    let (key, item) = entry;
                    self.write_key(out, &key)?;
                    out.write_str(&self.separators.1)?;
                    self.write(out, &item)
                })?;
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn write_container<T>(
        &self,
        out: &mut Text,
        (open, close): (char, char),
        items: impl Iterator<Item = T>,
        mut write_item: impl FnMut(&mut Text, T) -> Written,
    ) -> Written {
        let new_line = |out: &mut Text| -> fmt::Result {
            let Some(indent) = &self.indent else { return Ok(()) };
            out.write_char('\n')?;
            (0..out.depth).try_for_each(|_| out.write_str(indent))
        };
        out.write_char(open)?;
        let mut empty = true;
        for item in items {
            if !empty {
                out.write_str(&self.separators.0)?;
            }
            empty = false;
            out.nested(|out| {
                new_line(out)?;
                write_item(out, item)
            })?;
        }
        if !empty {
            new_line(out)?;
        }
        Ok(out.write_char(close)?)
    }

    /// Keys are strings; scalars become their JSON text.
    fn write_key(&self, out: &mut Text, key: &Value) -> Written {
        match key.kind() {
            ValueKind::String => self.write(out, key),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                out.write_char('"')?;
                self.write(out, key)?;
                Ok(out.write_char('"')?)
            }
            kind => Err(not_serializable(kind)),
        }
    }

    fn write_str(&self, out: &mut Text, text: &str) -> fmt::Result {
        out.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\r' => out.write_str("\\r")?,
                '\t' => out.write_str("\\t")?,
                '\x08' => out.write_str("\\b")?,
                '\x0C' => out.write_str("\\f")?,
                '\0'..='\x1F' => write!(out, "\\u{:04x}", u32::from(c))?,
                c if self.ensure_ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}")?;
                    }
                }
                c => out.write_char(c)?,
            }
        }
        out.write_char('"')
    }
}

fn write_json_number(out: &mut Text, value: &Value) -> fmt::Result {
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => out.write_str("NaN"),
        Ok(f64::INFINITY) => out.write_str("Infinity"),
        Ok(f64::NEG_INFINITY) => out.write_str("-Infinity"),
        _ => write_number(out, value),
    }
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{kind} is not JSON serializable"))
}

/// JSON as a template value; maps keep their order.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => {
            if let Some(value) = number.as_i64() {
                Value::from(value)
            } else if let Some(value) = number.as_u64() {
                Value::from(value)
            } else {
                Value::from(number.as_f64())
            }
        }
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, item)| (key.as_str(), from_json(item))))
        }
    }
}
