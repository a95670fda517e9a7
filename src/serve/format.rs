//! The form that a request wants its answer in: a JSON schema, any JSON object, a grammar.

use serde_json::{Value, json};

use super::{error::ApiError, fields::Fields};
use crate::text::Grammar;

/// A grammar and the field that asked for it.
pub(super) type Asked = (String, Grammar);

/// What `response_format`, `json_schema` or `grammar` asks for; nothing for plain text.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let format = fields.take::<Value>("response_format")?.map(response_format).transpose()?;
    let schema = fields.take::<Value>("json_schema")?;
    let schema = schema.map(|schema| asked("json_schema", Grammar::json(&schema))).transpose()?;
    let text = fields.take::<String>("grammar")?.filter(|text| !text.is_empty());
    let grammar = text.map(|text| asked("grammar", Grammar::lark(&text))).transpose()?;
    let mut all = [format.flatten(), schema, grammar].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some((first, _)), Some((second, _))) => {
            Err(ApiError::field(second, format_args!("does not go with {first}")))
        }
        (only, _) => Ok(only),
    }
}

fn response_format(format: Value) -> Result<Option<Asked>, ApiError> {
    let schema = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => format.get("schema").cloned().unwrap_or(json!({"type": "object"})),
        Some("json_schema") => {
            let schema = format.pointer("/json_schema/schema").or(format.get("schema"));
            let missing = || ApiError::field("response_format.json_schema.schema", "is missing");
            schema.cloned().ok_or_else(missing)?
        }
        _ => {
            let fault = "has a type other than text, json_object and json_schema";
            return Err(ApiError::field("response_format", fault));
        }
    };
    asked("response_format", Grammar::json(&schema)).map(Some)
}

/// A grammar that stood in `field`, or what is wrong with it.
pub(super) fn asked(field: &str, grammar: crate::Result<Grammar>) -> Result<Asked, ApiError> {
    match grammar {
        Ok(grammar) => Ok((field.to_owned(), grammar)),
        Err(error) => Err(ApiError::field(field, error)),
    }
}
