//! The sampling parameters that a model file recommends (`general.sampling.*`).

use super::PartialSampling;
use crate::{Error, Result, gguf::Metadata};

const PREFIX: &str = "general.sampling.";

impl PartialSampling {
    /// What the file recommends (spec/architectures.md, table of metadata keys). Keys of samplers
    /// that the engine does not have are logged and left out.
    ///
    /// # Errors
    /// A value of the wrong type or out of range; the key or parameter is named.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let float = |name| metadata.optional::<f32>(&format!("{PREFIX}{name}"));
        let integer = |name| metadata.optional::<i32>(&format!("{PREFIX}{name}"));
        let recommended = Self {
            temperature: float("temp")?,
            top_k: integer("top_k")?,
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repeat_penalty: float("penalty_repeat")?,
            repeat_last_n: integer("penalty_last_n")?,
            ..Self::default()
        };
        const READ: [&str; 6] =
            ["temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n"];
        for (key, value) in metadata.iter() {
            if key.strip_prefix(PREFIX).is_some_and(|name| !READ.contains(&name)) {
                tracing::warn!("{key} = {value} is ignored: the engine has no such sampler");
            }
        }
        let checked = recommended.clone().or_default().validate();
        checked.map_err(|e| Error::Model(format!("{PREFIX}* of the file: {e}")))?;
        Ok(recommended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, Value, write::Writer};

    fn read(name: &str, entries: &[(&str, Value)]) -> Result<PartialSampling> {
        let path = std::env::temp_dir().join(format!("engine-{}-{name}.gguf", std::process::id()));
        let mut file = Writer::default();
        for (key, value) in entries {
            file.set(&format!("{PREFIX}{key}"), value.clone());
        }
        file.write(&path, |_, _| Ok(())).unwrap();
        let read =
            Gguf::open(&path).and_then(|gguf| PartialSampling::from_metadata(gguf.metadata()));
        std::fs::remove_file(path).unwrap();
        read
    }

    #[test]
    fn every_key_sets_its_parameter() {
        let file = read(
            "all",
            &[
                ("temp", Value::F32(1.0)),
                ("top_k", Value::I32(20)),
                ("top_p", Value::F32(0.9)),
                ("min_p", Value::F32(0.0)),
                ("penalty_repeat", Value::F32(1.1)),
                ("penalty_last_n", Value::I32(-1)),
                ("mirostat", Value::I32(2)),
            ],
        );
        let expected = PartialSampling {
            temperature: Some(1.0),
            top_k: Some(20),
            top_p: Some(0.9),
            min_p: Some(0.0),
            repeat_penalty: Some(1.1),
            repeat_last_n: Some(-1),
            ..Default::default()
        };
        assert_eq!(file.unwrap(), expected);
        assert_eq!(read("none", &[]).unwrap(), PartialSampling::default());
    }

    #[test]
    fn wrong_values_are_errors_that_name_them() {
        let error = read("type", &[("top_k", Value::String(b"many".to_vec()))]).unwrap_err();
        assert!(error.to_string().contains("general.sampling.top_k"), "{error}");
        let error = read("range", &[("top_p", Value::F32(3.0))]).unwrap_err();
        assert!(error.to_string().contains("top_p"), "{error}");
        assert_eq!(error.exit_status(), 1, "the file is wrong, not the usage");
    }
}
