//! What was measured, and on what.

use super::Options;
use crate::{Gguf, Result, gpu::AdapterReport, ngram::Storage, plan::Model};
use std::{collections::BTreeMap, fs};

/// What was measured, and on what.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The model's architecture and name.
    pub model: String,
    /// Its file, as it was asked for.
    pub file: String,
    /// How its weights are stored, like `Q4_K_M`.
    pub weights: String,
    /// Bytes of its tensors.
    pub size: u64,
    /// Elements of its tensors.
    pub params: u64,
    /// Its layers, all of which run on the device.
    pub layers: u32,
    /// Where rows of an n-gram table are read from.
    pub ngram: Storage,
    /// The device that was asked for; none: the best.
    pub device: Option<String>,
    /// Graphics API.
    pub backend: String,
    /// The adapter's name and driver.
    pub gpu: String,
    /// The processor's name; empty where the system does not tell.
    pub cpu: String,
    /// Bytes a second of a copy within the device's memory, reads and writes counted, as measured
    /// just before; none where there was no room for it.
    pub copy: Option<f64>,
}

impl Subject {
    pub(super) fn new(
        gguf: &Gguf,
        model: &Model,
        options: &Options,
        device: &AdapterReport,
        copy: Option<f64>,
    ) -> Result<Self> {
        let name = gguf.metadata().optional::<&str>("general.name")?.unwrap_or(&model.name);
        let elements = |dims: &[u64; 4]| dims.iter().product::<u64>();
        Ok(Self {
            model: format!("{} {name}", model.config.arch.name()),
            file: model.name.clone(),
            weights: weights(gguf.metadata().optional("general.file_type")?, model).to_owned(),
            size: model.tensors.iter().map(|t| t.file_bytes()).sum(),
            params: model.tensors.iter().map(|t| elements(&t.dims)).sum(),
            layers: model.config.layers.len() as u32,
            ngram: options.engine.ngram,
            device: options.engine.device.select.clone(),
            backend: device.backend.clone(),
            gpu: format!("{}, {}", device.name, device.driver),
            cpu: fs::read_to_string("/proc/cpuinfo").map_or(String::new(), |text| processor(&text)),
            copy,
        })
    }

    /// The model and how its weights are stored, as llama-bench's column `model` has it.
    pub fn model_type(&self) -> String {
        format!("{} {}", self.model, self.weights).trim_end().to_owned()
    }
}

/// How a file says that most of its weights are stored, by `general.file_type`; else the type of
/// most of their bytes.
fn weights(file_type: Option<u32>, model: &Model) -> &'static str {
    if let Some(name) = file_type.and_then(mix) {
        return name;
    }
    let mut bytes = BTreeMap::new();
    for tensor in &model.tensors {
        *bytes.entry(tensor.ty.name()).or_insert(0) += tensor.file_bytes();
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name)
}

/// The name of a `general.file_type` (spec/gguf.md 2).
fn mix(file_type: u32) -> Option<&'static str> {
    Some(match file_type {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4_MOE",
        39 => "NVFP4",
        _ => return None,
    })
}

/// The processor's name in `/proc/cpuinfo`.
fn processor(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("", |(_, name)| name.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_named_by_the_file_or_else_by_most_bytes() {
        let model = Model::of_file(&crate::demo::open().unwrap(), "demo").unwrap();
        assert_eq!(weights(None, &model), "Q8_0");
        assert_eq!(weights(Some(15), &model), "Q4_K_M");
        assert_eq!(weights(Some(999), &model), "Q8_0");
    }

    #[test]
    fn the_processor_is_named_where_the_system_tells() {
        assert_eq!(
            processor("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"),
            "Some CPU @ 2 GHz"
        );
        assert_eq!(processor("Processor: 1\n"), "");
    }
}
