//! The forward passes of spec/architectures.md in plain f64, one token at a time: what the
//! engine's answers are compared with where no published reference exists. It shares only the
//! GGUF reader and the dequantisation with the engine.

mod attention;
mod delta_net;
mod ffn;
mod math;
mod weights;

use std::path::Path;

use attention::{Attention, Cache};
use delta_net::{DeltaNet, Memory};
use ffn::FeedForward;
pub(crate) use ffn::Routing;
pub(crate) use math::Inputs;
use math::{Matrix, Pairs, Rope, add_scaled, rms_norm};
use weights::Weights;

/// A `llama`, `qwen3`, `qwen3moe`, `qwen35` or `qwen35moe` model.
pub(crate) struct Model {
    eps: f64,
    embedding: Matrix,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    /// `None`: tied to the embedding.
    output: Option<Matrix>,
}

struct Layer {
    mixer_norm: Vec<f64>,
    mixer: Mixer,
    ffn_norm: Vec<f64>,
    ffn: FeedForward,
}

enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

/// All that one sequence remembers, by layer.
#[derive(Clone)]
pub(crate) struct State(Vec<LayerState>);

#[derive(Clone)]
enum LayerState {
    Attention(Cache),
    DeltaNet(Memory),
}

/// Everything computed for one token.
pub(crate) struct Step {
    /// `[n_embd]`.
    pub(crate) embed: Vec<f64>,
    pub(crate) layers: Vec<LayerStep>,
    /// `[vocab]`.
    pub(crate) logits: Vec<f64>,
}

/// What one layer computed for one token, vectors of `[n_embd]`.
pub(crate) struct LayerStep {
    /// Output of attention or GDN, before it is added.
    pub(crate) mixer_out: Vec<f64>,
    /// Output of the feed-forward part, before it is added.
    pub(crate) ffn_out: Vec<f64>,
    /// Residual stream after the layer.
    pub(crate) layer_out: Vec<f64>,
    pub(crate) routing: Option<Routing>,
}

/// The token of the largest logit.
pub(crate) fn argmax(logits: &[f64]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.expect("a vocabulary") as u32
}

impl Model {
    /// Reads all weights of a file. MTP blocks are left out.
    pub(crate) fn open(path: &Path) -> Self {
        Self::with_inputs(path, Inputs::Exact)
    }

    /// Reads all weights of a file for products that see `inputs`.
    pub(crate) fn with_inputs(path: &Path, inputs: Inputs) -> Self {
        let weights = Weights::open(path, inputs);
        let hybrid = match weights.architecture() {
            "llama" | "qwen3" | "qwen3moe" => false,
            "qwen35" | "qwen35moe" => true,
            other => panic!("{other} has no f64 forward pass"),
        };
        let rope = Rope {
            pairs: if weights.architecture() == "llama" { Pairs::Adjacent } else { Pairs::Halves },
            n_rot: weights.find_count("rope.dimension_count").unwrap_or(weights.head_dim()),
            base: weights.float("rope.freq_base"),
        };
        let layer = |i: usize| {
            let prefix = format!("blk.{i}");
            let ffn_norm = if hybrid { "post_attention_norm" } else { "ffn_norm" };
            Layer {
                mixer_norm: weights.vector(&format!("{prefix}.attn_norm.weight")),
                mixer: if hybrid && weights.is_recurrent(i) {
                    Mixer::DeltaNet(DeltaNet::load(&weights, &prefix))
                } else {
                    Mixer::Attention(Attention::load(&weights, &prefix, hybrid, rope))
                },
                ffn_norm: weights.vector(&format!("{prefix}.{ffn_norm}.weight")),
                ffn: FeedForward::load(&weights, &prefix),
            }
        };
        let drafts = weights.find_count("nextn_predict_layers").unwrap_or(0);
        Self {
            eps: weights.eps(),
            embedding: weights.matrix("token_embd.weight"),
            layers: (0..weights.count("block_count") - drafts).map(layer).collect(),
            output_norm: weights.vector("output_norm.weight"),
            output: weights.has("output.weight").then(|| weights.matrix("output.weight")),
        }
    }

    /// The state of an empty sequence.
    pub(crate) fn state(&self) -> State {
        let state = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(_) => LayerState::Attention(Cache::default()),
            Mixer::DeltaNet(delta_net) => LayerState::DeltaNet(delta_net.memory()),
        };
        State(self.layers.iter().map(state).collect())
    }

    /// Appends one token to the sequence.
    pub(crate) fn step(&self, state: &mut State, token: u32) -> Step {
        let embed = self.embedding.row(token as usize);
        let mut x = embed.clone();
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, state) in self.layers.iter().zip(&mut state.0) {
            let normed = rms_norm(&x, &layer.mixer_norm, self.eps);
            let mixer_out = match (&layer.mixer, state) {
                (Mixer::Attention(mixer), LayerState::Attention(cache)) => {
                    mixer.step(cache, &normed)
                }
                (Mixer::DeltaNet(mixer), LayerState::DeltaNet(memory)) => {
                    mixer.step(memory, &normed)
                }
                _ => unreachable!("the state is another model's"),
            };
            add_scaled(&mut x, 1.0, &mixer_out);
            let (ffn_out, routing) = layer.ffn.step(&rms_norm(&x, &layer.ffn_norm, self.eps));
            add_scaled(&mut x, 1.0, &ffn_out);
            layers.push(LayerStep { mixer_out, ffn_out, layer_out: x.clone(), routing });
        }
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let logits = output.mul(&rms_norm(&x, &self.output_norm, self.eps));
        Step { embed, layers, logits }
    }
}
