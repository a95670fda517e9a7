//! Models that are known by name: `models/known.json` holds their geometry, so that a person can
//! plan before the download.

use super::{Model, PlannedTensor, Weights};
use crate::{
    Error, Result,
    gguf::{Metadata, Value},
    model::{
        ModelConfig,
        tensors::{TensorSpec, expected_tensors},
    },
    ngram,
};
use serde::Deserialize;

static FILE: &str = include_str!("../../models/known.json");

#[derive(Deserialize)]
struct File {
    models: Vec<Entry>,
}

/// A model, perhaps of several names.
#[derive(Deserialize)]
struct Entry {
    names: Vec<String>,
    /// What to know of the plan.
    note: Option<String>,
    /// The embedding serves as output.
    #[serde(default)]
    tied_output: bool,
    /// Rows of the n-gram table, padding included.
    ngram_rows: Option<u64>,
    architecture: String,
    /// The keys of its GGUF file, without the architecture before the dot.
    metadata: serde_json::Map<String, serde_json::Value>,
}

fn entries() -> Result<Vec<Entry>> {
    let file: std::result::Result<File, _> = serde_json::from_str(FILE);
    Ok(file.map_err(|e| Error::Model(format!("models/known.json: {e}")))?.models)
}

/// The names of all known models.
///
/// # Errors
/// None unless the build is broken: the list is part of the program.
pub fn names() -> Result<Vec<String>> {
    Ok(entries()?.into_iter().flat_map(|entry| entry.names).collect())
}

/// The known model `name`, without regard to case, with tensors as `weights` says.
///
/// # Errors
/// [`Error::Usage`] for a name that is not known, which lists those that are.
pub(super) fn model(name: &str, weights: Weights) -> Result<Model> {
    let wanted = |known: &String| known.eq_ignore_ascii_case(name);
    let Some(entry) = entries()?.into_iter().find(|entry| entry.names.iter().any(wanted)) else {
        return Err(Error::Usage(format!(
            "`{name}` is no file and no model that is known; known are {}",
            names()?.join(", ")
        )));
    };
    let known = entry.names.iter().find(|known| wanted(known));
    let config = entry.config()?;
    let present = |tensor: &str| tensor == "output.weight" && !entry.tied_output;
    let specs = expected_tensors(&config, present).into_iter();
    let specs = specs.filter(|spec| spec.required || present(&spec.name));
    let name = known.cloned().unwrap_or_default();
    let typed = |spec: TensorSpec| {
        // An embedding that serves as output is stored as one.
        let is_output = entry.tied_output && spec.name == "token_embd.weight";
        let like = if is_output { "output.weight" } else { &spec.name };
        let ty = weights.ty(like, &spec.dims, config.n_layer);
        PlannedTensor { ty, name: spec.name, dims: spec.dims }
    };
    let tensors = specs.map(typed).collect();
    Model::new(name, config, tensors, weights.file_bytes(), entry.note)
}

impl Entry {
    fn config(&self) -> Result<ModelConfig> {
        let prefix = &self.architecture;
        let mut pairs = vec![("general.architecture".into(), Value::from(prefix.as_str()))];
        for (key, value) in &self.metadata {
            let value = value_of(value)
                .ok_or_else(|| Error::Model(format!("models/known.json: `{key}` is {value}")))?;
            pairs.push((format!("{prefix}.{key}"), value));
        }
        let metadata = Metadata::from_pairs("models/known.json", pairs);
        ModelConfig::read(&metadata, &|name| self.ngram_rows.filter(|_| name == ngram::TABLE))
    }
}

/// A number or an array of whole numbers, as metadata.
fn value_of(value: &serde_json::Value) -> Option<Value> {
    Some(match value {
        serde_json::Value::Number(n) => match n.as_u64() {
            Some(n) => n.into(),
            None => n.as_f64()?.into(),
        },
        serde_json::Value::Array(list) => {
            let list: Option<Vec<u64>> = list.iter().map(serde_json::Value::as_u64).collect();
            Value::from(list?.as_slice())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::BlockType;

    /// Parameters of a known model, those of the n-gram table apart.
    fn parameters(name: &str) -> (f64, f64) {
        let model = model(name, Weights::Type(BlockType::F16)).unwrap();
        let count = |table: bool| {
            let tensors = model.tensors.iter().filter(|t| (t.name == ngram::TABLE) == table);
            tensors.map(|t| t.dims.iter().product::<u64>()).sum::<u64>() as f64 / 1e9
        };
        (count(false), count(true))
    }

    #[test]
    fn parameters_are_those_that_the_names_say() {
        for (name, billions) in [
            ("Qwen3.5-0.8B", 0.75),
            ("Qwen3.5-4B", 4.2),
            ("qwen3.5-9b", 9.0),
            ("Qwen3.8-27B", 26.9),
            ("Qwen3.6-35B-A3B", 34.66),
            ("Qwen3.5-122B-A10B", 122.1),
            ("Qwen3.5-397B-A17B", 396.3),
            ("Qwen3-8B", 8.19),
            ("Qwen3-30B-A3B", 30.5),
            ("Qwen3-Next-80B-A3B", 79.7),
            ("Llama-3-8B", 8.03),
        ] {
            let (found, table) = parameters(name);
            assert!((found / billions - 1.0).abs() < 0.01, "{name}: {found}");
            assert_eq!(table, 0.0);
        }
        let (found, table) = parameters("QWEN3.8-FLASH-NEXT");
        assert!((found / 125.7 - 1.0).abs() < 0.001, "{found}");
        assert!((table / 51.2 - 1.0).abs() < 0.001, "{table}");
    }

    #[test]
    fn every_name_is_a_model_and_an_unknown_one_lists_them() {
        let names = names().unwrap();
        assert_eq!(names.len(), 15);
        for name in &names {
            assert_eq!(model(name, Weights::default()).unwrap().name, *name);
        }
        let Err(e) = model("gpt-5", Weights::default()) else { panic!("gpt-5 is known") };
        assert!(matches!(e, Error::Usage(_)));
        let text = e.to_string();
        assert!(names.iter().all(|name| text.contains(name.as_str())), "{text}");
    }
}
