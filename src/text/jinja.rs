//! A Jinja environment that behaves like the one of transformers, in Python
//! (spec/tokenizer.md 5.1).

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::python::{self, JsonStyle, Text};
use super::strftime;

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// The environment, with a bound on the work of one rendering.
pub(super) fn environment(fuel: u64) -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    if let Ok(syntax) = syntax {
        env.set_syntax(syntax);
    }
    env.set_fuel(Some(fuel));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // They indent, so deep values make quadratic text before the fuel is checked.
    env.remove_filter("pprint");
    env.remove_global("debug");
    env.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&string(state, value)?)?),
    });
    env.add_filter("string", string);
    env.add_filter("tojson", to_json);
    env.add_filter("default", default);
    env.add_filter("int", int);
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        let raised = Raised(message);
        Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
    });
    env.add_function("strftime_now", |format: &str| {
        strftime::now(format).map_err(|directive| {
            let detail = format!("strftime_now does not know %{directive}");
            Error::new(ErrorKind::InvalidOperation, detail)
        })
    });
    env
}

/// What `write` writes, paid for with fuel.
fn written(
    state: &State,
    write: impl FnOnce(&mut Text) -> Result<(), Error>,
) -> Result<String, Error> {
    let (_, fuel) = state.fuel_levels().unwrap_or_default();
    let mut out = Text::new(usize::try_from(fuel).unwrap_or(usize::MAX));
    write(&mut out)?;
    let text = out.into_string();
    state.consume_fuel(text.len() as u64 / 4)?;
    Ok(text)
}

/// `str(value)` of Python.
fn string(state: &State, value: &Value) -> Result<String, Error> {
    written(state, |out| python::write_value(out, value))
}

/// `default` with its arguments by name too.
fn default(value: &Value, arguments: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| match arguments.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let other = argument(0, "default_value")?;
    let if_false = argument(1, "boolean")?.is_some_and(|flag| flag.is_true());
    kwargs.assert_all_used()?;
    let is_missing = value.is_undefined() || (if_false && !value.is_true());
    Ok(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

/// `int` that gives 0, or its default, for what is no number.
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    minijinja::filters::int(state, value, Some(default), base, kwargs)
}

/// `tojson` as transformers defines it: `json.dumps` without ASCII escapes.
fn to_json(
    state: &State,
    value: &Value,
    arguments: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        Ok(match arguments.get(index) {
            Some(value) => value.clone(),
            None => kwargs.get::<Option<Value>>(name)?.unwrap_or_default(),
        })
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_true();
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::String => Some(string(state, &indent)?),
        _ => Some(" ".repeat(usize::try_from(indent)?.min(32))),
    };
    let separators = if separators.is_undefined() || separators.is_none() {
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
    } else {
        let [item, key] = [0, 1].map(|index| separators.get_item_by_index(index));
        (string(state, &item?)?, string(state, &key?)?)
    };
    let style = JsonStyle { indent, separators, ensure_ascii, sort_keys };
    written(state, |out| style.write(out, value))
}
