//! The tools that a request offers, and whether it forces a call.

use serde_json::Value;

use super::{
    error::ApiError,
    fields::Fields,
    format::{Asked, asked},
};
use crate::text::{CallForm, Grammar};

/// The tools of a request.
pub(super) struct Tools {
    /// A list as in OpenAI's API; none if there are none or the request forbids calls.
    pub(super) offered: Option<Value>,
    choice: Choice,
    several: bool,
}

enum Choice {
    Free,
    /// Some function has to be called.
    Any,
    /// This function has to be called.
    Named(String),
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        for (i, tool) in tools.iter().enumerate() {
            let name = tool.pointer("/function/name").and_then(Value::as_str);
            if tool.get("type").and_then(Value::as_str) != Some("function") || name.is_none() {
                let fault = "is not {\"type\": \"function\", \"function\": {\"name\": ...}}";
                return Err(ApiError::field(format!("tools[{i}]"), fault));
            }
        }
        let choice = fields.take::<Value>("tool_choice")?.unwrap_or("auto".into());
        let name = choice.pointer("/function/name").and_then(Value::as_str);
        let (choice, allowed) = match (choice.as_str(), name) {
            (Some("auto"), _) => (Choice::Free, true),
            (Some("none"), _) => (Choice::Free, false),
            (Some("required"), _) => (Choice::Any, true),
            (_, Some(name)) => (Choice::Named(name.to_owned()), true),
            _ => {
                let fault = "is none of auto, none, required and {\"type\": \"function\", \
                             \"function\": {\"name\": ...}}";
                return Err(ApiError::field("tool_choice", fault));
            }
        };
        let offered = allowed && !tools.is_empty();
        Ok(Self {
            offered: offered.then_some(tools.into()),
            choice,
            several: fields.take("parallel_tool_calls")?.unwrap_or(true),
        })
    }

    /// Whether calls after the first are left out.
    pub(super) fn one_call(&self) -> bool {
        !self.several
    }

    /// What the answer is held to: a forced call in `form`, or `format` where calls stay possible.
    pub(super) fn grammar(
        &self,
        format: Option<Asked>,
        form: CallForm,
    ) -> Result<Option<Asked>, ApiError> {
        let Some(tools) = &self.offered else { return Ok(format) };
        let name = match &self.choice {
            // Nothing to choose from is no fault: clients send it all the same.
            Choice::Free => {
                let Some((field, grammar)) = format else { return Ok(None) };
                let calls = Grammar::calls(tools, None, self.several, form);
                let either = calls.and_then(|calls| grammar.or(calls));
                return asked(&field, either).map(Some);
            }
            Choice::Any => None,
            Choice::Named(name) => Some(name.as_str()),
        };
        let several = self.several && name.is_none();
        asked("tool_choice", Grammar::calls(tools, name, several, form)).map(Some)
    }
}
