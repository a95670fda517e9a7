//! `engine inspect`: what a GGUF file holds, and what of it we cannot run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use engine::gguf::{Array, Gguf, TensorInfo, Value};
use engine::model::config::{Ffn, LayerKind, ModelConfig};
use engine::model::tensors::check_tensors;
use engine::quant::BlockType;
use engine::{Error, Result};
use serde::Serialize;

use super::output;

/// Flags of `engine inspect`.
#[derive(Args, Debug)]
pub(super) struct InspectArgs {
    /// The model file, or any part of it
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    /// Bytes of all files.
    size: u64,
    metadata: serde_json::Map<String, serde_json::Value>,
    /// Absent for a model that we do not run.
    model: Option<ModelConfig>,
    /// Tensors and bytes by type.
    types: Vec<TypeUse>,
    tensors: Vec<TensorRow<'a>>,
    /// Sentences; empty if the model runs.
    unsupported: Vec<String>,
    /// Tensors that the model does not use.
    unused: Vec<String>,
}

#[derive(Serialize)]
struct TypeUse {
    #[serde(rename = "type")]
    ty: &'static str,
    tensors: usize,
    bytes: u64,
    runs: bool,
}

#[derive(Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: &'a [u64],
    bytes: u64,
    part: usize,
    offset: u64,
}

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let gguf = Gguf::open(&args.file)?;
    let report = Report::of(&gguf);
    match args.json {
        true => output::json(&report),
        false => output::result(report.text(&gguf)),
    }
}

impl<'a> Report<'a> {
    fn of(gguf: &'a Gguf) -> Self {
        let types = types(gguf.tensors());
        let (model, unused, mut unsupported) = match ModelConfig::from_gguf(gguf) {
            Err(error) => (None, Vec::new(), vec![sentence(error)]),
            Ok(config) => match check_tensors(&config, gguf) {
                Err(error) => (Some(config), Vec::new(), vec![sentence(error)]),
                Ok(unused) => (Some(config), unused, Vec::new()),
            },
        };
        unsupported.extend(types.iter().filter(|use_| !use_.runs).map(
            |TypeUse { ty, tensors, .. }| {
                format!("{tensors} tensors are {ty}, which no kernel multiplies by yet")
            },
        ));
        Self {
            files: gguf.files().collect(),
            size: gguf.file_len(),
            metadata: gguf.metadata().iter().map(|(k, v)| (k.to_owned(), json(v))).collect(),
            model,
            types,
            tensors: gguf.tensors().iter().map(TensorRow::of).collect(),
            unsupported,
            unused,
        }
    }

    fn text(&self, gguf: &Gguf) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out, gguf);
        out
    }

    fn write_text(&self, out: &mut String, gguf: &Gguf) -> std::fmt::Result {
        for file in &self.files {
            writeln!(out, "{}", file.display())?;
        }
        writeln!(out, "{}, {} tensors", output::size(self.size), self.tensors.len())?;

        writeln!(out, "\nmetadata")?;
        for (key, value) in gguf.metadata().iter() {
            writeln!(out, "  {key}: {} = {value}", type_name(value))?;
        }
        if let Some(config) = &self.model {
            writeln!(out, "\nmodel\n  {}", summary(config))?;
        }

        writeln!(out, "\ntypes")?;
        for TypeUse { ty, tensors, bytes, .. } in &self.types {
            writeln!(out, "  {ty:8} {tensors:5} tensors {:>12}", output::size(*bytes))?;
        }
        writeln!(out, "\ntensors")?;
        let width = self.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for TensorRow { name, ty, shape, bytes, .. } in &self.tensors {
            let shape = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
            writeln!(out, "  {name:width$}  {ty:8} {:>12}  {shape}", output::size(*bytes))?;
        }

        for (title, lines) in [("not used", &self.unused), ("not supported", &self.unsupported)] {
            if !lines.is_empty() {
                writeln!(out, "\n{title}\n  {}", lines.join("\n  "))?;
            }
        }
        Ok(())
    }
}

impl<'a> TensorRow<'a> {
    fn of(tensor: &'a TensorInfo) -> Self {
        Self {
            name: &tensor.name,
            ty: tensor.ty.name(),
            shape: tensor.shape(),
            bytes: tensor.size,
            part: tensor.part,
            offset: tensor.offset,
        }
    }
}

fn types(tensors: &[TensorInfo]) -> Vec<TypeUse> {
    let mut uses: BTreeMap<BlockType, (usize, u64)> = BTreeMap::new();
    for tensor in tensors {
        let (count, bytes) = uses.entry(tensor.ty).or_default();
        *count += 1;
        *bytes += tensor.size;
    }
    uses.into_iter()
        .map(|(ty, (tensors, bytes))| TypeUse {
            ty: ty.name(),
            tensors,
            bytes,
            runs: ty.runs_on_gpu(),
        })
        .collect()
}

/// What an error says without the file it is about, which the report has named.
fn sentence(error: Error) -> String {
    match error {
        Error::Gguf { reason, .. } | Error::Model(reason) => reason,
        other => other.to_string(),
    }
}

/// `u32`, or `string[640]` for an array.
fn type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.ty(), array.len()),
        other => other.ty().to_string(),
    }
}

/// A value as JSON; an array too long to read as its type, length and first elements.
fn json(value: &Value) -> serde_json::Value {
    const WHOLE: usize = 64;
    const FIRST: usize = 8;
    let elements = |array: &Array, n| array.iter().take(n).map(|v| json(&v)).collect::<Vec<_>>();
    match value {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => String::from_utf8_lossy(v).into(),
        Value::Array(array) if array.len() <= WHOLE => elements(array, WHOLE).into(),
        Value::Array(array) => serde_json::json!({
            "type": array.ty().to_string(),
            "length": array.len(),
            "first": elements(array, FIRST),
        }),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
    }
}

fn summary(config: &ModelConfig) -> String {
    let ModelConfig { arch, n_layer, n_mtp, n_embd, n_vocab, n_head, n_kv, head_dim, .. } = config;
    let attention = config.layers.iter().filter(|&&l| l != LayerKind::Recurrent).count();
    let mut text =
        format!("{arch}: {n_layer} layers of width {n_embd}, {attention} with attention");
    if *n_mtp > 0 {
        text += &format!(", {n_mtp} draft blocks");
    }
    text += &format!("; {n_head} query and {n_kv} key heads of {head_dim}");
    if let Some(gdn) = &config.gdn {
        text += &format!(
            "; gated delta net of {} key and {} value heads of {}",
            gdn.n_k_heads, gdn.n_v_heads, gdn.state_size
        );
    }
    match config.ffn {
        Ffn::Dense { n_ff } => text += &format!("; feed-forward {n_ff}"),
        Ffn::Moe { n_expert, n_used, n_ff_exp, n_ff_shared, .. } => {
            text += &format!("; {n_used} of {n_expert} experts of {n_ff_exp}");
            if let Some(n_ff) = n_ff_shared {
                text += &format!(" and a shared one of {n_ff}");
            }
        }
    }
    text + &format!("; vocabulary {n_vocab}, context {}", config.context_length)
}
