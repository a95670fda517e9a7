//! Hyper-parameters and dequantised tensors of a GGUF file.

use std::path::Path;

use engine::{
    gguf::{Gguf, TensorInfo},
    quant,
};

use super::math::{Inputs, Matrix};

/// An open file. A missing key or tensor ends the test with the reader's own sentence.
pub(crate) struct Weights {
    gguf: Gguf,
    architecture: String,
    inputs: Inputs,
}

impl Weights {
    /// Opens the file; its matrices will round their inputs as `inputs` says.
    pub(crate) fn open(path: &Path, inputs: Inputs) -> Self {
        let gguf = Gguf::open(path).unwrap_or_else(|e| panic!("{e}"));
        let architecture = gguf.metadata().require::<&str>("general.architecture");
        let architecture = architecture.unwrap_or_else(|e| panic!("{e}")).to_owned();
        Self { gguf, architecture, inputs }
    }

    /// `general.architecture`.
    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// The integer `{architecture}.{name}`, if it is there.
    pub(crate) fn find_count(&self, name: &str) -> Option<usize> {
        let value = self.gguf.metadata().optional::<u32>(&self.key(name));
        value.unwrap_or_else(|e| panic!("{e}")).map(|count| count as usize)
    }

    /// The integer `{architecture}.{name}`.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.find_count(name).unwrap_or_else(|| panic!("{} is missing", self.key(name)))
    }

    /// The float `{architecture}.{name}`.
    pub(crate) fn float(&self, name: &str) -> f64 {
        self.gguf
            .metadata()
            .require::<f32>(&self.key(name))
            .unwrap_or_else(|e| panic!("{e}"))
            .into()
    }

    /// Added to the mean square in every RMS norm.
    pub(crate) fn eps(&self) -> f64 {
        self.float("attention.layer_norm_rms_epsilon")
    }

    /// Size of an attention head.
    pub(crate) fn head_dim(&self) -> usize {
        self.find_count("attention.key_length")
            .unwrap_or_else(|| self.count("embedding_length") / self.count("attention.head_count"))
    }

    /// Whether layer `i` of a hybrid model is a GDN layer.
    pub(crate) fn is_recurrent(&self, i: usize) -> bool {
        let key = self.key("attention.recurrent_layers");
        let layers = self.gguf.metadata().optional::<Vec<bool>>(&key);
        match layers.unwrap_or_else(|e| panic!("{e}")) {
            Some(layers) => layers[i],
            None => {
                !(i + 1).is_multiple_of(self.find_count("full_attention_interval").unwrap_or(4))
            }
        }
    }

    /// Whether the tensor is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn tensor(&self, name: &str) -> (&TensorInfo, Vec<f32>) {
        let info = self.gguf.tensor(name).unwrap_or_else(|| panic!("tensor {name} is missing"));
        let mut values = vec![0.0; info.elements() as usize];
        quant::dequantise(info.ty, self.gguf.data(info), &mut values)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        (info, values)
    }

    /// A tensor as one vector, if it is there.
    pub(crate) fn find_vector(&self, name: &str) -> Option<Vec<f64>> {
        self.has(name).then(|| self.vector(name))
    }

    /// A tensor as one vector.
    pub(crate) fn vector(&self, name: &str) -> Vec<f64> {
        self.tensor(name).1.into_iter().map(f64::from).collect()
    }

    /// A tensor as one matrix.
    pub(crate) fn matrix(&self, name: &str) -> Matrix {
        let (info, values) = self.tensor(name);
        Matrix::new(info.dims[0] as usize, values, self.inputs)
    }

    /// A three-dimensional tensor as one matrix an expert.
    pub(crate) fn matrices(&self, name: &str) -> Vec<Matrix> {
        let (info, values) = self.tensor(name);
        values
            .chunks_exact((info.dims[0] * info.dims[1]) as usize)
            .map(|rows| Matrix::new(info.dims[0] as usize, rows.to_vec(), self.inputs))
            .collect()
    }
}
