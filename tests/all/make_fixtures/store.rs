//! Writes expected values in the layout that `Expected` reads.

use std::fs;

use safetensors::{Dtype, tensor::TensorView};
use serde::Serialize;

use crate::common::{
    expected::{Prompt, fixtures},
    forward64::{LayerStep, Model, Step},
};

/// Writes `expected/NAME.json` and `expected/NAME.safetensors` for prompts of `model`.
pub(crate) fn write(name: &str, model: &Model, prompts: Vec<Prompt>) {
    let mut tensors = Vec::new();
    for prompt in &prompts {
        let mut state = model.state();
        let steps: Vec<Step> = prompt.ids.iter().map(|&id| model.step(&mut state, id)).collect();
        positions(prompt, &steps, &mut tensors);
        if prompt.name == "p1" {
            trace(prompt, &steps, &mut tensors);
        }
    }
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (&tensor.name, view.expect("the shape is that of the values"))
    });
    let file = safetensors::serialize(views, None).expect("names are unique");
    let path = fixtures().join(format!("expected/{name}"));
    fs::write(path.with_extension("safetensors"), file).expect("the fixture can be written");

    #[derive(Serialize)]
    struct Document<'a> {
        model: &'a str,
        computed: &'a str,
        prompts: Vec<Prompt>,
    }
    let computed = "tests/all/common/forward64, float64 on the CPU";
    let document = Document { model: name, computed, prompts };
    let mut json = serde_json::to_string(&document).expect("plain values");
    json.push('\n');
    fs::write(path.with_extension("json"), json).expect("the fixture can be written");
}

struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn floats<'a>(
        prompt: &Prompt,
        name: &str,
        shape: &[usize],
        values: impl Iterator<Item = &'a f64>,
    ) -> Self {
        let bytes = values.flat_map(|&value| (value as f32).to_le_bytes()).collect();
        let name = format!("{}.{name}", prompt.name);
        Self { name, dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }
}

/// Values at the prompt's positions.
fn positions(prompt: &Prompt, steps: &[Step], tensors: &mut Vec<Tensor>) {
    let at: Vec<&Step> = prompt.positions.iter().map(|&t| &steps[t]).collect();
    let (count, layers) = (at.len(), at[0].layers.len());
    let hidden: Vec<&Vec<f64>> =
        (0..layers).flat_map(|i| at.iter().map(move |step| &step.layers[i].layer_out)).collect();
    let norms: Vec<f64> =
        hidden.iter().map(|x| x.iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
    tensors.extend([
        Tensor::floats(
            prompt,
            "logits",
            &[count, at[0].logits.len()],
            at.iter().flat_map(|step| &step.logits),
        ),
        Tensor::floats(prompt, "hidden_norm", &[layers, count, 1], norms.iter()),
        Tensor::floats(
            prompt,
            "hidden_first16",
            &[layers, count, 1, 16],
            hidden.iter().flat_map(|x| &x[..16]),
        ),
    ]);
}

/// All values of all tokens.
fn trace(prompt: &Prompt, steps: &[Step], tensors: &mut Vec<Tensor>) {
    let (layers, embd) = (steps[0].layers.len(), steps[0].embed.len());
    let all: Vec<&LayerStep> =
        (0..layers).flat_map(|i| steps.iter().map(move |step| &step.layers[i])).collect();
    let shape = [layers, steps.len(), embd];
    let chosen = || all.iter().filter_map(|x| x.routing.as_ref()).flat_map(|x| &x.chosen);
    let routed = [layers, steps.len(), chosen().count() / all.len()];
    let embed = steps.iter().flat_map(|step| &step.embed);
    tensors.extend([
        Tensor::floats(prompt, "embed", &shape[1..], embed),
        Tensor::floats(prompt, "mixer_out", &shape, all.iter().flat_map(|x| &x.mixer_out)),
        Tensor::floats(prompt, "ffn_out", &shape, all.iter().flat_map(|x| &x.ffn_out)),
        Tensor::floats(prompt, "layer_out", &shape, all.iter().flat_map(|x| &x.layer_out)),
        Tensor::floats(prompt, "router_weights", &routed, chosen().map(|(_, weight)| weight)),
        Tensor {
            name: format!("{}.router_ids", prompt.name),
            dtype: Dtype::I32,
            shape: routed.to_vec(),
            bytes: chosen().flat_map(|&(id, _)| (id as i32).to_le_bytes()).collect(),
        },
    ]);
}
