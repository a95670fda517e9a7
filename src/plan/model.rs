//! What a plan knows of a model: geometry, and the tensors with their types.

use super::{Weights, known};
use crate::{
    Error, Result,
    gguf::Gguf,
    model::{ModelConfig, tensors::expected_tensors},
    ngram,
    quant::BlockType,
};
use std::path::Path;

/// A tensor of a planned model.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// The full name.
    pub name: String,
    /// How its elements are stored.
    pub ty: BlockType,
    /// Elements along each dimension, the contiguous one first; 1 where unused.
    pub dims: [u64; 4],
}

impl PlannedTensor {
    /// Bytes in a file.
    pub fn file_bytes(&self) -> u64 {
        let [width, rows @ ..] = self.dims;
        self.ty.row_bytes(width).unwrap_or(0).saturating_mul(rows.iter().product())
    }
}

/// A model to plan for.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name for people.
    pub name: String,
    /// The geometry.
    pub config: ModelConfig,
    /// The tensors that the forward pass uses.
    pub tensors: Vec<PlannedTensor>,
    /// What all of them are scaled by, but for the n-gram table: 1 unless only the size of the
    /// file is known.
    pub scale: f64,
    /// What to know of the plan besides.
    pub note: Option<String>,
}

impl Model {
    /// The model of a file, or of that name if there is no such file; `weights` is for names.
    ///
    /// # Errors
    /// A file that is wrong, or neither a file nor a known name.
    pub fn find(model: &str, weights: Option<Weights>) -> Result<Self> {
        if !Path::new(model).is_file() {
            return known::model(model, weights.unwrap_or_default());
        }
        match weights {
            Some(_) => Err(Error::Usage("--weights is for names; a file says it itself".into())),
            None => Self::of_file(&Gguf::open(model)?, model),
        }
    }

    /// The model of an opened file, of which only the header is read.
    ///
    /// # Errors
    /// An architecture we do not run, or keys that are missing or at odds.
    pub fn of_file(gguf: &Gguf, name: &str) -> Result<Self> {
        let config = ModelConfig::from_gguf(gguf)?;
        let specs = expected_tensors(&config, |name| gguf.tensor(name).is_some());
        let found = specs.iter().filter_map(|spec| gguf.tensor(&spec.name));
        let tensor = found.map(|t| PlannedTensor { name: t.name.clone(), ty: t.ty, dims: t.dims });
        let tensors = tensor.collect();
        Self::new(name.into(), config, tensors, None, None)
    }

    pub(super) fn new(
        name: String,
        config: ModelConfig,
        tensors: Vec<PlannedTensor>,
        file_bytes: Option<u64>,
        note: Option<String>,
    ) -> Result<Self> {
        let mut model = Self { name, config, tensors, scale: 1.0, note };
        if let Some(file) = file_bytes {
            let all: u64 = model.tensors.iter().map(PlannedTensor::file_bytes).sum();
            let table = model.table().map_or(0, PlannedTensor::file_bytes);
            let rest = file.checked_sub(table).filter(|rest| *rest > 0).ok_or_else(|| {
                Error::Usage(format!(
                    "--weights {file} is no more than the {table} bytes of the n-gram table alone"
                ))
            })?;
            model.scale = rest as f64 / (all - table) as f64;
        }
        Ok(model)
    }

    /// The n-gram table.
    pub fn table(&self) -> Option<&PlannedTensor> {
        self.tensors.iter().find(|t| t.name == ngram::TABLE)
    }

    /// Tokens of context that the model was trained for, stretched where YaRN is on.
    pub fn reach(&self) -> u32 {
        self.config.rope.reach(self.config.context_length)
    }

    /// Whether the embedding serves as output.
    pub fn tied_output(&self) -> bool {
        !self.tensors.iter().any(|t| t.name == "output.weight")
    }
}
