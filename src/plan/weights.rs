//! What a model's tensors take on each heap, and how much of them a token reads.

use super::{Model, PlannedTensor};
use crate::{
    Result,
    model::{
        config::Ffn,
        weights::{is_experts, layer},
    },
    ngram,
    ops::{gated_product::GateUp, matrix::Shape},
    quant::BlockType,
};

/// Bytes of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightBytes {
    /// On the device.
    pub(super) device: u64,
    /// In host memory that the device reads in place.
    pub(super) host: u64,
    /// The n-gram table, wherever it is.
    pub(super) table: u64,
    /// Of those on the device, what one token reads.
    pub(super) read_device: u64,
    /// Of those on the host, likewise.
    pub(super) read_host: u64,
}

/// How a tensor is loaded (`model::weights::Loader`).
enum Form<'a> {
    /// Blocks as they are, split where a binding ends.
    Matrix,
    /// The same of two tensors together.
    Pair(&'a PlannedTensor),
    /// The rows of two tensors in one matrix, in F32 where their types differ.
    Stacked(&'a PlannedTensor),
    /// f32 values.
    Vector,
    /// Read from the file, row by row.
    Table,
    /// With another tensor, by the host only, or never.
    Nothing,
}

impl WeightBytes {
    /// What one token reads, wherever it is.
    pub(super) fn read(&self) -> u64 {
        self.read_device + self.read_host
    }

    /// Of `model` on a device that binds `max_binding` bytes at once, with the experts of the
    /// first `experts_host` layers in host memory.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when one row of a tensor exceeds a binding.
    pub(super) fn of(model: &Model, experts_host: u32, max_binding: u64) -> Result<Self> {
        let mut sum = Self::default();
        for tensor in &model.tensors {
            let form = form(model, tensor);
            let bytes = match form {
                Form::Nothing => continue,
                Form::Table => {
                    sum.table += tensor.file_bytes();
                    continue;
                }
                Form::Vector => (tensor.dims.iter().product::<u64>() * 4).next_multiple_of(16),
                Form::Matrix => matrix(tensor, max_binding)?,
                Form::Pair(up) => pair(tensor, up, max_binding)?,
                Form::Stacked(second) => stacked(tensor, second, max_binding)?,
            };
            let bytes = (bytes as f64 * model.scale) as u64;
            let experts = is_experts(&tensor.name);
            let read = match model.config.ffn {
                Ffn::Moe { n_used, n_expert, .. } if experts => {
                    bytes / u64::from(n_expert) * u64::from(n_used)
                }
                // A row of the embedding is nothing beside the rest.
                _ if tensor.name == "token_embd.weight" && !model.tied_output() => 0,
                _ => bytes,
            };
            match experts && layer(&tensor.name).is_some_and(|il| il < experts_host) {
                true => (sum.host, sum.read_host) = (sum.host + bytes, sum.read_host + read),
                false => {
                    (sum.device, sum.read_device) = (sum.device + bytes, sum.read_device + read);
                }
            }
        }
        Ok(sum)
    }
}

fn form<'a>(model: &'a Model, tensor: &PlannedTensor) -> Form<'a> {
    let name = tensor.name.as_str();
    let is_draft = layer(name).is_some_and(|il| il >= model.config.n_layer);
    // The first of a pair stands for both.
    let other = |from: &str, to: &str| {
        let name = name.contains(from).then(|| name.replace(from, to))?;
        model.tensors.iter().find(|t| t.name == name)
    };
    let stacked = [
        ("ssm_alpha.weight", "ssm_beta.weight"),
        ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"),
    ];
    let first = stacked.iter().find_map(|(first, second)| other(second, first));
    let second = other("ffn_up", "ffn_gate").or(first);
    if is_draft || name == "rope_freqs.weight" || second.is_some() {
        Form::Nothing
    } else if name == ngram::TABLE {
        Form::Table
    } else if tensor.dims[1] == 1
        || name.ends_with("conv1d.weight")
        || name.ends_with("_inject.weight")
    {
        Form::Vector
    } else if let Some(up) = other("ffn_gate", "ffn_up") {
        Form::Pair(up)
    } else if let Some(second) = stacked.iter().find_map(|(first, second)| other(first, second)) {
        Form::Stacked(second)
    } else {
        Form::Matrix
    }
}

fn matrix(tensor: &PlannedTensor, max_binding: u64) -> Result<u64> {
    let [n_in, n_out, n_expert, _] = tensor.dims.map(|n| n as u32);
    // Those that do not run yet will take what they take in the file.
    if !tensor.ty.runs_on_gpu() {
        return Ok(tensor.file_bytes());
    }
    if tensor.name.contains("ffn_gate_up_exps") {
        let (ty, shape) = ([tensor.ty; 2], [n_in, n_out / 2, n_expert]);
        return GateUp::planned_bytes(&tensor.name, ty, shape, max_binding);
    }
    let shape = Shape { ty: tensor.ty, n_in, n_out, n_expert, together: 1 };
    shape.bytes(&tensor.name, max_binding)
}

fn pair(gate: &PlannedTensor, up: &PlannedTensor, max_binding: u64) -> Result<u64> {
    if !gate.ty.runs_on_gpu() || !up.ty.runs_on_gpu() {
        return Ok(gate.file_bytes() + up.file_bytes());
    }
    let [n_in, n_ff, n_expert, _] = gate.dims.map(|n| n as u32);
    let ty = [gate.ty, up.ty];
    GateUp::planned_bytes(&gate.name, ty, [n_in, n_ff, n_expert], max_binding)
}

fn stacked(first: &PlannedTensor, second: &PlannedTensor, max_binding: u64) -> Result<u64> {
    // Factors, which the file may have for these types, are multiplied in.
    let has_factor = first.ty.planes().is_some_and(|planes| planes.has_factor);
    let ty = if first.ty == second.ty && !has_factor { first.ty } else { BlockType::F32 };
    let (n_in, n_out) = (first.dims[0] as u32, (first.dims[1] + second.dims[1]) as u32);
    Shape { ty, n_in, n_out, n_expert: 1, together: 1 }.bytes(&first.name, max_binding)
}
