//! The fields of a request body, each read by name and type, so that a wrong one is named.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::{
    generate::GenerateOptions,
    sample::{PartialSampling, SamplingParams},
};

/// Most stop strings, and most bytes of one.
const STOPS: (usize, usize) = (64, 4096);

/// Most alternatives of a token, as in OpenAI's API.
pub(super) const TOP_LOGPROBS: usize = 20;

/// Fields of other servers that this one does not have, and what leaves them off. They are
/// refused otherwise, for silence would be taken for consent.
const UNSUPPORTED: &[(&str, &[Off])] = &[
    ("best_of", &[Off::Number(1.0)]),
    ("echo", &[Off::False]),
    ("suffix", &[Off::Text("")]),
    ("functions", &[Off::Empty]),
    ("function_call", &[Off::Text("none"), Off::Text("auto")]),
    ("audio", &[]),
    ("dynatemp_range", &[Off::Number(0.0)]),
    ("xtc_probability", &[Off::Number(0.0)]),
    ("dry_multiplier", &[Off::Number(0.0)]),
    ("mirostat", &[Off::Number(0.0)]),
    ("min_keep", &[Off::Number(0.0)]),
    ("post_sampling_probs", &[Off::False]),
    ("samplers", &[]),
    ("thinking_budget_tokens", &[Off::Number(-1.0)]),
];

/// A value that leaves a field off, as null and the field's absence always do.
enum Off {
    False,
    Number(f64),
    Text(&'static str),
    Empty,
}

impl Off {
    fn is(&self, value: &Value) -> bool {
        match self {
            Self::False => *value == Value::Bool(false),
            Self::Number(number) => value.as_f64() == Some(*number),
            Self::Text(text) => value.as_str() == Some(text),
            Self::Empty => value.as_array().is_some_and(Vec::is_empty),
        }
    }
}

/// The fields of a body that are not read yet. Those that nobody reads are ignored.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a JSON object.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = serde_path_to_error::deserialize(&mut json).map(Self);
        let fields = parsed.map_err(|error| {
            let path = error.path().to_string();
            let message = error.into_inner();
            match path.as_str() {
                "." | "?" => ApiError::invalid(format!("the body is not a JSON object: {message}")),
                _ => ApiError::field(path, format_args!("is not readable: {message}")),
            }
        })?;
        json.end().map_err(|e| ApiError::invalid(format!("the body is not a JSON object: {e}")))?;
        Ok(fields)
    }

    /// The value of a field; nothing if it is missing or null.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => typed(name, value).map(Some),
        }
    }

    /// The value of a field that has to be there.
    pub(super) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::field(name, "is missing"))
    }

    /// All that are not read.
    pub(super) fn into_inner(self) -> Map<String, Value> {
        self.0
    }

    /// The value of a field that stays to be read.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Puts a field in; null takes it out.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.into(), value);
    }

    /// How many alternatives of each token llama.cpp's `n_probs` asks for, if any.
    pub(super) fn n_probs(&mut self) -> Result<Option<usize>, ApiError> {
        let top = self.take::<u32>("n_probs")?.unwrap_or(0) as usize;
        if top > TOP_LOGPROBS {
            return Err(ApiError::field("n_probs", format_args!("may be {TOP_LOGPROBS} at most")));
        }
        Ok((top > 0).then_some(top))
    }

    /// Refuses fields that ask for what the server does not have.
    pub(super) fn refuse_unsupported(&mut self) -> Result<(), ApiError> {
        for (name, off) in UNSUPPORTED {
            if let Some(value) = self.take::<Value>(name)?
                && !off.iter().any(|off| off.is(&value))
            {
                return Err(ApiError::field(*name, "is not supported by this server"));
            }
        }
        Ok(())
    }

    /// How to choose tokens: what the request says, then `defaults`.
    pub(super) fn sampling(
        &mut self,
        defaults: &PartialSampling,
        n_vocab: u32,
    ) -> Result<SamplingParams, ApiError> {
        let request = PartialSampling {
            temperature: self.take("temperature")?,
            top_k: self.take("top_k")?,
            top_p: self.take("top_p")?,
            min_p: self.take("min_p")?,
            typical_p: self.take("typical_p")?,
            top_n_sigma: self.take("top_n_sigma")?,
            repeat_penalty: self.take("repeat_penalty")?,
            repeat_last_n: self.take("repeat_last_n")?,
            presence_penalty: self.take("presence_penalty")?,
            frequency_penalty: self.take("frequency_penalty")?,
            seed: self.take("seed")?,
            logit_bias: self.take::<Value>("logit_bias")?.map(bias).transpose()?,
        };
        let params = request.or(defaults.clone()).or_default();
        params.validate().map_err(ApiError::parameter)?;
        match params.logit_bias.iter().find(|(token, _)| *token >= n_vocab) {
            Some((token, _)) => Err(ApiError::field(
                "logit_bias",
                format_args!("names token {token}, but the vocabulary has {n_vocab} tokens"),
            )),
            None => Ok(params),
        }
    }

    /// When generation ends: what the request says, then `defaults`.
    pub(super) fn generation(
        &mut self,
        defaults: &GenerateOptions,
    ) -> Result<GenerateOptions, ApiError> {
        let mut options = defaults.clone();
        for name in ["n_predict", "max_tokens", "max_completion_tokens"] {
            match self.take::<i64>(name)? {
                None => {}
                Some(-1) => options.max_tokens = None,
                Some(limit) => {
                    let limit = usize::try_from(limit).map_err(|_| {
                        ApiError::field(name, "must be 0 or more, or -1 for no limit")
                    })?;
                    options.max_tokens = Some(limit);
                }
            }
        }
        if let Some(stop) = self.take::<Value>("stop")? {
            options.stop = match stop {
                Value::String(text) => vec![text],
                stop => typed("stop", stop)?,
            };
        }
        let (most, longest) = STOPS;
        if options.stop.len() > most || options.stop.iter().any(|stop| stop.len() > longest) {
            let fault = format_args!("may hold {most} strings of {longest} bytes");
            return Err(ApiError::field("stop", fault));
        }
        if let Some(ignore) = self.take("ignore_eos")? {
            options.ignore_eos = ignore;
        }
        Ok(options)
    }
}

/// `value` as a `T`, or an error that names the field and the place in it.
pub(super) fn typed<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = match error.path().to_string().as_str() {
            "." | "?" => name.to_owned(),
            path if path.starts_with('[') => format!("{name}{path}"),
            path => format!("{name}.{path}"),
        };
        ApiError::field(path, format_args!("is wrong: {}", error.into_inner()))
    })
}

/// OpenAI's object of ids, or llama.cpp's list of pairs; `false` bans a token.
fn bias(value: Value) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |what: &dyn fmt::Display| {
        ApiError::field(
            "logit_bias",
            format_args!("has {what} where a token id and a number belong"),
        )
    };
    let number = |value: &Value| match value {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        value => value.as_f64().map(|x| x as f32),
    };
    match &value {
        Value::Object(entries) => {
            let entry = |(id, value): (&String, &Value)| Some((id.parse().ok()?, number(value)?));
            entries.iter().map(|e| entry(e).ok_or_else(|| wrong(e.1))).collect()
        }
        Value::Array(entries) => {
            let entry = |pair: &Value| match pair.as_array()?.as_slice() {
                [id, value] => Some((u32::try_from(id.as_u64()?).ok()?, number(value)?)),
                _ => None,
            };
            entries.iter().map(|e| entry(e).ok_or_else(|| wrong(e))).collect()
        }
        other => Err(wrong(other)),
    }
}
