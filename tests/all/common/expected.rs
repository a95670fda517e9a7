//! The expected values of a fixture model, as tests/fixtures/README.md describes them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

/// Largest allowed logit difference of float32 arithmetic.
pub(crate) const FLOAT32_LIMIT: f64 = 0.002;

/// Largest allowed difference of a hidden value, as a share of the norm of the stream.
pub(crate) const HIDDEN_LIMIT: f64 = 0.0005;

/// A model file and what it must compute.
pub(crate) struct Expected {
    pub(crate) model: PathBuf,
    pub(crate) prompts: Vec<Prompt>,
}

/// One prompt and what follows from it.
#[derive(Deserialize, Serialize)]
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// The K positions for which values are stored.
    pub(crate) positions: Vec<usize>,
    /// The tokens that follow greedily.
    pub(crate) greedy: Vec<u32>,
    /// Distance between the two largest logits at each greedy step.
    pub(crate) greedy_gap: Vec<f64>,
    /// Smallest distance in router logits between a chosen and a rejected expert.
    pub(crate) min_router_gap: Option<f64>,
    pub(crate) rounding_deviation: RoundingDeviation,
    /// By layer and position of the query: the positions that attention reads, ascending.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) indexer_selected: BTreeMap<usize, BTreeMap<usize, Vec<u32>>>,
    /// `[K][vocab]`.
    #[serde(skip)]
    pub(crate) logits: Vec<Vec<f32>>,
    /// `[L][K S]`: norm of each residual stream after each layer; empty for quantised files.
    #[serde(skip)]
    pub(crate) hidden_norm: Vec<Vec<f32>>,
    /// `[L][K S][16]`: its first values; empty for quantised files.
    #[serde(skip)]
    pub(crate) hidden_first16: Vec<Vec<Vec<f32>>>,
    /// All values at all positions; `p1` of the tiny models only.
    #[serde(skip)]
    pub(crate) trace: Option<Trace>,
}

/// Largest logit change, for each of `positions`, when the inputs of all products are rounded.
#[derive(Deserialize, Serialize)]
pub(crate) struct RoundingDeviation {
    #[serde(rename = "float16 inputs")]
    pub(crate) float16: Vec<f64>,
}

/// Every value of every position.
pub(crate) struct Trace {
    /// `[T][H]`.
    pub(crate) embed: Vec<Vec<f32>>,
    /// `[T][S H]`: what the n-gram embedding adds; empty where there is none.
    pub(crate) ngram_out: Vec<Vec<f32>>,
    pub(crate) layers: Vec<LayerTrace>,
}

/// What one layer computes, by position.
pub(crate) struct LayerTrace {
    /// `[T][H]`: output of attention or GDN, before it is added.
    pub(crate) mixer_out: Vec<Vec<f32>>,
    /// `[T][H]`: output of the feed-forward part, before it is added.
    pub(crate) ffn_out: Vec<Vec<f32>>,
    /// `[T][S H]`: residual streams after the layer.
    pub(crate) layer_out: Vec<Vec<f32>>,
    /// `[T][top-k]`: chosen experts by falling weight; empty for dense models.
    pub(crate) router_ids: Vec<Vec<i32>>,
    /// `[T][top-k]`: their weights.
    pub(crate) router_weights: Vec<Vec<f32>>,
}

impl Expected {
    /// The fixture `name` of this repository.
    pub(crate) fn load(name: &str) -> Self {
        let root = fixtures();
        Self::read(&root, name).unwrap_or_else(|| panic!("{} lacks {name}", root.display()))
    }

    /// The model `name` of the reference data beside the repository; where that is missing, says
    /// that `name` is skipped.
    pub(crate) fn load_shared(name: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/reference");
        let found = Self::read(&root, name);
        if found.is_none() {
            super::skipped(format_args!("{name}, which {} lacks", root.display()));
        }
        found
    }

    fn read(root: &Path, name: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Document {
            prompts: Vec<Prompt>,
        }
        let json = fs::read(root.join(format!("expected/{name}.json"))).ok()?;
        let Document { mut prompts } = serde_json::from_slice(&json).expect("expected values");
        let floats = fs::read(root.join(format!("expected/{name}.safetensors"))).ok()?;
        let floats = Floats(SafeTensors::deserialize(&floats).expect("expected tensors"));
        for prompt in &mut prompts {
            floats.fill(prompt);
        }
        Some(Self { model: root.join(format!("models/{name}.gguf")), prompts })
    }
}

/// Where the fixtures lie.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

impl Prompt {
    /// Largest allowed logit difference at `positions[k]` with a float16 cache or float16 inputs.
    pub(crate) fn float16_limit(&self, k: usize) -> f64 {
        3.0 * self.rounding_deviation.float16[k] + 0.02
    }
}

/// The tensors of one file, as rows of their last dimension.
struct Floats<'a>(SafeTensors<'a>);

impl Floats<'_> {
    fn fill(&self, prompt: &mut Prompt) {
        let tensor = |name: &str| format!("{}.{name}", prompt.name);
        let count = prompt.positions.len();
        let logits = self.rows(&tensor("logits"), f32::from_le_bytes);
        let hidden_norm = self.by_layer(&tensor("hidden_norm"), count, f32::from_le_bytes);
        let streams = hidden_norm.first().map_or(1, |layer| layer[0].len());
        let first16 = tensor("hidden_first16");
        let hidden_first16 = self.by_layer(&first16, count * streams, f32::from_le_bytes);
        let trace = self.trace(&prompt.name, prompt.ids.len());
        prompt.logits = logits;
        prompt.hidden_norm = hidden_norm.iter().map(|layer| layer.concat()).collect();
        prompt.hidden_first16 = hidden_first16;
        prompt.trace = trace;
    }

    fn trace(&self, prompt: &str, tokens: usize) -> Option<Trace> {
        let floats = |name: &str| {
            self.by_layer(&format!("{prompt}.{name}"), tokens, f32::from_le_bytes).into_iter()
        };
        let router_ids = self.by_layer(&format!("{prompt}.router_ids"), tokens, i32::from_le_bytes);
        let mut router = router_ids.into_iter().zip(floats("router_weights"));
        let layers = floats("mixer_out")
            .zip(floats("ffn_out"))
            .zip(floats("layer_out"))
            .map(|((mixer_out, ffn_out), layer_out)| {
                let (router_ids, router_weights) = router.next().unwrap_or_default();
                LayerTrace { mixer_out, ffn_out, layer_out, router_ids, router_weights }
            })
            .collect();
        let ngram_out = floats("ple_out").next().unwrap_or_default();
        floats("embed").next().map(|embed| Trace { embed, ngram_out, layers })
    }

    /// `[layer][count][row]`; nothing where the file lacks the tensor.
    fn by_layer<T: Clone>(
        &self,
        name: &str,
        count: usize,
        number: fn([u8; 4]) -> T,
    ) -> Vec<Vec<Vec<T>>> {
        self.rows(name, number).chunks(count).map(<[_]>::to_vec).collect()
    }

    /// All rows of the last dimension; nothing where the file lacks the tensor.
    fn rows<T>(&self, name: &str, number: fn([u8; 4]) -> T) -> Vec<Vec<T>> {
        let Ok(tensor) = self.0.tensor(name) else { return Vec::new() };
        let width = *tensor.shape().last().expect("no scalars");
        let (numbers, _) = tensor.data().as_chunks::<4>();
        let row = |row: &[[u8; 4]]| row.iter().map(|&bytes| number(bytes)).collect();
        numbers.chunks(width).map(row).collect()
    }
}
