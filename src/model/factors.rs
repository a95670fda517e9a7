//! Factors of weights that a file has in tensors of their own (spec/architectures.md 3): beside
//! `NAME.weight` of type NVFP4 may be `NAME.scale`, which multiplies all of its weights. `NAME.input_scale` is
//! for engines that round activations to 4 bits; in f32 it has no effect.

use crate::{
    Error, Result,
    gguf::{Gguf, TensorInfo},
    ngram, quant,
};

/// The factor of each matrix (expert) of `tensor`, if the file has them.
///
/// # Errors
/// Neither one factor nor one a matrix, or of a type that is no number.
pub(super) fn factors(gguf: &Gguf, tensor: &TensorInfo) -> Result<Option<Vec<f32>>> {
    let scale = tensor.name.strip_suffix("weight").map(|name| format!("{name}scale"));
    let scale = scale.filter(|_| has_factor(tensor)).and_then(|name| gguf.tensor(&name));
    let Some(scale) = scale else { return Ok(None) };
    let matrices = tensor.dims[2] as usize;
    let mut values = vec![0.0; scale.elements() as usize];
    quant::dequantise(scale.ty, gguf.data(scale), &mut values)?;
    match values.as_slice() {
        [one] => Ok(Some(vec![*one; matrices])),
        each if each.len() == matrices => Ok(Some(values)),
        _ => Err(Error::Model(format!(
            "`{}` has {} values for {matrices} matrices",
            scale.name,
            values.len()
        ))),
    }
}

/// Whether a tensor that the configuration does not name belongs to another one in this way.
///
/// # Errors
/// A factor other than 1 that would be ignored, or one that cannot be read.
pub(super) fn is_factor(gguf: &Gguf, tensor: &TensorInfo) -> Result<bool> {
    let of = |suffix| tensor.name.strip_suffix(suffix);
    let Some(name) = of(".scale").or(of(".input_scale")) else { return Ok(false) };
    match gguf.tensor(&format!("{name}.weight")).filter(|t| has_factor(t)) {
        Some(weights) => factors(gguf, weights).map(|_| true),
        None if gguf.data(tensor).chunks_exact(4).all(|v| v == 1f32.to_le_bytes()) => Ok(true),
        None => Err(Error::Model(format!(
            "`{}` is not 1; only tensors of type NVFP4 may be scaled",
            tensor.name
        ))),
    }
}

fn has_factor(tensor: &TensorInfo) -> bool {
    let planes = tensor.ty.planes();
    planes.is_some_and(|planes| planes.has_factor) && tensor.name != ngram::TABLE
}
