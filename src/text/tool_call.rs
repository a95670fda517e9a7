//! The text of a tool call, in the two forms that Qwen models write (spec/tokenizer.md 5.4):
//! a JSON object with name and arguments, or `<function=…>` with `<parameter=…>` tags.

use serde_json::{Map, Value};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// Name of the function; perhaps one that was not offered.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// The calls in what stands between `<tool_call>` and its end; none if it is something else.
/// Parameters are typed as the schema of `tools` says. Closing tags may be missing at the end.
pub(super) fn parse(body: &str, tools: Option<&Value>) -> Option<Vec<ParsedCall>> {
    let body = body.trim();
    if body.starts_with('{') {
        return Some(vec![from_json(body)?]);
    }
    let mut calls = Vec::new();
    let mut rest = body;
    while let Some(function) = rest.strip_prefix(FUNCTION) {
        let (call, after) = from_tags(function, tools)?;
        calls.push(call);
        rest = after.trim_start();
    }
    (rest.is_empty() && !calls.is_empty()).then_some(calls)
}

fn from_json(text: &str) -> Option<ParsedCall> {
    let call: Value = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(other) => other.clone(),
    };
    arguments
        .is_object()
        .then(|| ParsedCall { name: name.into(), arguments: arguments.to_string() })
}

/// The call behind `<function=`, and the text after it.
fn from_tags<'t>(text: &'t str, tools: Option<&Value>) -> Option<(ParsedCall, &'t str)> {
    let (name, mut rest) = split_name(text)?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        let Some(parameter) = rest.strip_prefix(PARAMETER) else { break };
        let (key, value) = split_name(parameter)?;
        let (value, after) = split_value(value);
        arguments.insert(key.to_owned(), typed(value, schema(tools, name, key)));
        rest = after;
    }
    let rest = rest.strip_prefix(FUNCTION_END).unwrap_or(rest);
    let arguments = Value::Object(arguments).to_string();
    Some((ParsedCall { name: name.to_owned(), arguments }, rest))
}

/// The name up to `>`, and the text after it.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once('>')?;
    let name = name.trim();
    (!name.is_empty() && !name.contains(['\n', '<'])).then_some((name, rest))
}

/// A parameter's value without the line breaks around it, and the text after its end.
fn split_value(text: &str) -> (&str, &str) {
    const NEXT: &str = "\n<parameter=";
    let closed = text.find(PARAMETER_END).map(|at| (at, PARAMETER_END.len()));
    let next = text.find(NEXT).map(|at| (at, 0));
    let ended = closed.into_iter().chain(next).min();
    let ended = ended.or_else(|| text.find(FUNCTION_END).map(|at| (at, 0)));
    let (end, tag) = ended.unwrap_or((text.len(), 0));
    let value = text[..end].strip_prefix('\n').unwrap_or(&text[..end]);
    (value.strip_suffix('\n').unwrap_or(value), &text[end + tag..])
}

/// The schema of a parameter, if `tools` has one.
fn schema<'t>(tools: Option<&'t Value>, function: &str, parameter: &str) -> Option<&'t Value> {
    let functions = tools?.as_array()?.iter().map(|tool| tool.get("function").unwrap_or(tool));
    let mut named = functions.filter(|f| f.get("name").and_then(Value::as_str) == Some(function));
    named.next()?.get("parameters")?.get("properties")?.get(parameter)
}

/// The types that a schema names.
fn types(schema: &Value) -> Vec<&str> {
    let named: Vec<&str> = match schema.get("type") {
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        one => one.and_then(Value::as_str).into_iter().collect(),
    };
    let one_of = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)?.as_array());
    one_of.flatten().flat_map(types).chain(named).collect()
}

/// A value written as text: JSON or Python, unless that is of a type that the schema does not name
/// beside strings; else a string.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let value = match text.trim() {
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        json => serde_json::from_str(json).unwrap_or_else(|_| text.into()),
    };
    let types = schema.map(types).unwrap_or_default();
    let may_be = match &value {
        Value::Null => types.contains(&"null"),
        Value::Bool(_) => types.contains(&"boolean"),
        Value::Number(n) => {
            types.contains(&"number") || (!n.is_f64() && types.contains(&"integer"))
        }
        Value::String(_) => false,
        Value::Array(_) => types.contains(&"array"),
        Value::Object(_) => types.contains(&"object"),
    };
    if types.contains(&"string") && !may_be { text.into() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arguments(body: &str) -> Vec<(String, Value)> {
        let properties = json!({
            "s": {"type": "string"},
            "n": {"type": "number"},
            "sn": {"type": ["string", "null"]},
            "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        });
        let tools = json!([{"function": {"name": "f", "parameters": {"properties": properties}}}]);
        let calls = parse(body, Some(&tools)).unwrap();
        let call = |c: ParsedCall| (c.name, serde_json::from_str(&c.arguments).unwrap());
        calls.into_iter().map(call).collect()
    }

    #[test]
    fn values_are_typed_by_the_schema_or_by_their_look() {
        let body = "<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n1.5\n</parameter>\n\
                    <parameter=b>\nTrue\n</parameter>\n<parameter=z>\nNone\n</parameter>\n\
                    <parameter=l>\n[1, \"é\"]\n</parameter>\n<parameter=t>\nplain text\n</parameter>\n\
                    </function>";
        let expected =
            json!({"s": "12", "n": 1.5, "b": true, "z": null, "l": [1, "é"], "t": "plain text"});
        assert_eq!(arguments(body), [("f".into(), expected)]);
    }

    #[test]
    fn a_string_among_other_types_stays_one() {
        let body = "<function=f>\n<parameter=sn>\n12\n</parameter>\n<parameter=si>\n1.5\n</parameter>\n\
                    </function><function=f>\n<parameter=sn>\nnull\n</parameter>\n\
                    <parameter=si>\n7\n</parameter>\n</function>";
        let expected = [json!({"sn": "12", "si": "1.5"}), json!({"sn": null, "si": 7})];
        assert_eq!(arguments(body), expected.map(|each| ("f".into(), each)));
    }

    #[test]
    fn values_keep_their_lines_but_for_one_break_at_each_end() {
        let body = "<function=f>\n<parameter=s>\n\n a\n</div>\n\n</parameter>\n</function>";
        assert_eq!(arguments(body), [("f".into(), json!({"s": "\n a\n</div>\n"}))]);
    }

    #[test]
    fn missing_ends_are_tolerated() {
        for body in [
            "<function=f>\n<parameter=s>\na\n<parameter=n>\n2\n</parameter>\n</function>",
            "<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\n2\n</function>",
            "<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\n2",
        ] {
            assert_eq!(arguments(body), [("f".into(), json!({"s": "a", "n": 2}))], "{body}");
        }
        let two = "<function=g></function>\n<function=h>";
        assert_eq!(arguments(two), [("g".into(), json!({})), ("h".into(), json!({}))]);
    }

    #[test]
    fn json_calls_take_an_object_or_its_text() {
        for body in [
            r#"{"name": "f", "arguments": {"n": 1}}"#,
            r#"{"name": "f", "arguments": "{\"n\":1}"}"#,
        ] {
            assert_eq!(arguments(body), [("f".into(), json!({"n": 1}))]);
        }
        assert_eq!(arguments(r#"{"name": "f"}"#), [("f".into(), json!({}))]);
    }

    #[test]
    fn what_is_no_call_is_none() {
        for body in [
            "",
            "{}",
            "{\"name\": \"\"}",
            "{\"name\": \"f\", \"arguments\": [1]}",
            "<function=>",
            "<function=f",
            "text",
            "<function=f></function> and text",
            "{\"name\": \"f\"",
        ] {
            assert_eq!(parse(body, None), None, "{body}");
        }
    }
}
