//! The grammar of tool calls, in the two forms that `tool_call` reads.

use serde_json::{Map, Value, json};

use super::grammar::guided;
use crate::{Error, Result};

/// How a model has learnt to write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// `{"name": …, "arguments": …}`.
    Json,
    /// `<function=…>` with `<parameter=…>` tags.
    Tags,
}

/// Text of a parameter that neither ends it nor starts the next one.
const TEXT: &str = r"/(?s:.*)/ & ~/(?s:.*(<\/parameter>|\n<parameter=).*)/ & ~/(?s:<parameter=.*)/";
/// What ends it.
const END: &str = "\n</parameter>\n";

/// Rules for `answer`: one call of a function of `tools`, or several; with a `name`, of that one.
///
/// # Errors
/// [`Error::Usage`] if no function has that name or its parameters are no schema.
pub(super) fn rules(
    tools: &Value,
    name: Option<&str>,
    several: bool,
    form: CallForm,
) -> Result<String> {
    let functions = tools.as_array().into_iter().flatten().filter_map(|tool| tool.get("function"));
    let functions: Vec<_> =
        functions.filter(|function| name.is_none_or(|name| function["name"] == name)).collect();
    if functions.is_empty() {
        let name = name.unwrap_or_default();
        return Err(Error::Usage(format!("there is no function {name:?} among the tools")));
    }
    let answer = if several { "call (\"\\n\" call)*" } else { "call" };
    let all: Vec<_> = (0..functions.len()).map(|i| format!("call_{i}")).collect();
    let mut rules = format!(
        "answer: {answer}\ncall: \"<tool_call>\\n\" function \"\\n</tool_call>\"\nfunction: {}\n",
        all.join(" | ")
    );
    for (function, rule) in functions.iter().zip(&all) {
        let tags = if form == CallForm::Tags { in_tags(function, rule)? } else { None };
        rules += &match tags {
            Some(tags) => tags,
            None => format!("{rule}: %json {}\n", guided(&in_json(function))?),
        };
    }
    Ok(rules)
}

/// The schema of a call. Definitions of the parameters are at its top, where references look.
fn in_json(function: &Value) -> Value {
    let any = json!({"type": "object"});
    let mut parameters =
        function.get("parameters").filter(|p| !p.is_null()).unwrap_or(&any).clone();
    let definitions = definitions(&parameters);
    if let Some(parameters) = parameters.as_object_mut() {
        definitions.keys().for_each(|key| drop(parameters.remove(key)));
    }
    let mut call = Map::from_iter([
        ("type".into(), "object".into()),
        (
            "properties".into(),
            json!({"name": {"const": function["name"]}, "arguments": parameters}),
        ),
        ("required".into(), json!(["name", "arguments"])),
        ("additionalProperties".into(), false.into()),
    ]);
    call.extend(definitions);
    call.into()
}

/// The rule `name` for a call in tags; none if they cannot hold the parameters: none are named, or
/// some are text of a form that only JSON's grammar knows.
fn in_tags(function: &Value, name: &str) -> Result<Option<String>> {
    let title = function["name"].as_str().unwrap_or_default();
    let none = Value::Null;
    let parameters = function.get("parameters").unwrap_or(&none);
    let known = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "title",
        "$defs",
        "definitions",
        "$schema",
    ];
    let keys = parameters.as_object().into_iter().flat_map(Map::keys);
    let properties = parameters.get("properties").and_then(Value::as_object);
    let (Some(properties), true, true) =
        (properties, keys.into_iter().all(|key| known.contains(&key.as_str())), is_name(title))
    else {
        return Ok(None);
    };
    let required = parameters.get("required").and_then(Value::as_array);
    let required = |key: &str| required.is_some_and(|all| all.iter().any(|name| name == key));
    let mut call = format!("{name}: {}", quoted(&format!("<function={title}>\n")));
    let mut rules = String::new();
    for (i, (key, schema)) in properties.iter().enumerate() {
        let (rule, value) = (format!("{name}_{i}"), format!("{name}_{i}_value"));
        let Some(of_value) = value_rule(&value, schema, parameters)?.filter(|_| is_name(key))
        else {
            return Ok(None);
        };
        let optional = if required(key) { "" } else { "?" };
        call += &format!(" {rule}{optional}");
        rules += &format!("{rule}: {} {value}\n", quoted(&format!("<parameter={key}>\n")));
        rules += &of_value;
    }
    Ok(Some(format!("{call} \"</function>\"\n{rules}")))
}

/// The rule `name` for a parameter's value and its end: text as it is where the schema says string,
/// else JSON. None for text of a form that this cannot say.
fn value_rule(name: &str, schema: &Value, parameters: &Value) -> Result<Option<String>> {
    if schema.get("type").and_then(Value::as_str) != Some("string") {
        let mut schema = guided(schema)?;
        if let Some(schema) = schema.as_object_mut() {
            schema.extend(definitions(parameters));
        }
        return Ok(Some(format!(
            "{name}: {name}_json {}\n{name}_json: %json {schema}\n",
            quoted(END)
        )));
    }
    let plain = ["type", "description", "title", "default", "examples", "enum", "const"];
    if schema.as_object().into_iter().flat_map(Map::keys).any(|key| !plain.contains(&key.as_str()))
    {
        return Ok(None);
    }
    let one = schema.get("const").map(std::slice::from_ref);
    let Some(choices) = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).or(one)
    else {
        return Ok(Some(format!("{name}[suffix={}]: {TEXT}\n", quoted(END))));
    };
    let choices: Option<Vec<_>> =
        choices.iter().map(|choice| choice.as_str().filter(|c| is_name(c))).collect();
    Ok(choices.filter(|choices| !choices.is_empty()).map(|choices| {
        let choices: Vec<_> = choices.into_iter().map(quoted).collect();
        format!("{name}: ({}) {}\n", choices.join(" | "), quoted(END))
    }))
}

/// Whether `text` can stand in a tag.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.contains(['<', '>', '\n'])
}

/// What references in `parameters` mean.
fn definitions(parameters: &Value) -> Map<String, Value> {
    let of = |key: &str| Some((key.to_owned(), parameters.get(key)?.clone()));
    ["$defs", "definitions"].into_iter().filter_map(of).collect()
}

/// A string of the grammar, which writes them as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
