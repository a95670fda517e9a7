//! Prompts whose answers do not hang on rounding: no expert and no token is chosen by a hair.

use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    expected::{Expected, Prompt, RoundingDeviation},
    forward64::{Inputs, Model, Step, argmax},
};

/// Prompt lengths, besides the one that comes from a text.
const LENGTHS: [usize; 5] = [1, 7, 40, 130, 420];
/// Tokens that follow a prompt.
const GREEDY: usize = 32;
/// Tokens that a text can produce; the rest of the vocabulary is padding.
const REAL_TOKENS: u32 = 589;
/// Smallest distance in router logits between chosen and rejected experts.
const ROUTER_GAP: f64 = 3e-4;
/// Smallest distance between the two largest logits at a greedy step.
const TOKEN_GAP: f64 = 1e-2;

/// Prompts `p0` to `p5` for the model, each with what follows it; values are not filled in.
pub(crate) fn choose(file: &Path) -> Vec<Prompt> {
    let exact = Model::open(file);
    let rounded = Model::with_inputs(file, Inputs::Float16);
    let random = LENGTHS.map(|n| {
        let candidates = (0..1000).map(|seed| (random_tokens(n, seed), None));
        accept(&exact, &rounded, candidates)
    });
    let texts = ["tiny-qwen3", "tiny-qwen35", "tiny-qwen35moe", "tiny-qwen35moe-mtp"].map(|name| {
        let text = Expected::load(name).prompts.pop().expect("prompts");
        (text.ids, text.text)
    });
    let text = accept(&exact, &rounded, texts.into_iter());
    let mut prompts: Vec<Prompt> = random.into_iter().chain([text]).collect();
    for (i, prompt) in prompts.iter_mut().enumerate() {
        prompt.name = format!("p{i}");
    }
    prompts
}

fn random_tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| random.random_range(0..REAL_TOKENS)).collect()
}

/// The first candidate whose choices are clear, also when the inputs of all products are rounded.
fn accept(
    exact: &Model,
    rounded: &Model,
    candidates: impl Iterator<Item = (Vec<u32>, Option<String>)>,
) -> Prompt {
    let mut candidates = candidates.filter_map(|(ids, text)| examine(exact, rounded, ids, text));
    candidates.next().expect("some candidate is clear")
}

fn examine(exact: &Model, rounded: &Model, ids: Vec<u32>, text: Option<String>) -> Option<Prompt> {
    let n = ids.len();
    let steps = generate(exact, &ids);
    let after = &steps[n - 1..n - 1 + GREEDY];
    let greedy: Vec<u32> = after.iter().map(|step| argmax(&step.logits)).collect();
    let greedy_gap: Vec<f64> = after.iter().map(|step| token_gap(&step.logits)).collect();
    let (router_gap, clear) = (router_gap(&steps[..n]), router_gap(&steps) > ROUTER_GAP);
    if !clear || greedy_gap.iter().any(|&gap| gap <= TOKEN_GAP) {
        return None;
    }
    let deviated = generate(rounded, &ids);
    let survives =
        deviated[n - 1..n - 1 + GREEDY].iter().map(|step| argmax(&step.logits)).eq(greedy.clone());
    let positions: Vec<usize> =
        if n <= 40 { (0..n).collect() } else { (1..=8).map(|k| k * n / 8 - 1).collect() };
    let deviation = |&t: &usize| {
        let pairs = steps[t].logits.iter().zip(&deviated[t].logits);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    survives.then(|| Prompt {
        name: String::new(),
        text,
        rounding_deviation: RoundingDeviation {
            float16: positions.iter().map(deviation).collect(),
        },
        ids,
        positions,
        greedy,
        greedy_gap,
        min_router_gap: Some(router_gap),
        indexer_selected: Default::default(),
        logits: Vec::new(),
        hidden_norm: Vec::new(),
        hidden_first16: Vec::new(),
        trace: None,
    })
}

/// The prompt and, after it, the likeliest token each time.
fn generate(model: &Model, ids: &[u32]) -> Vec<Step> {
    let mut state = model.state();
    let mut steps: Vec<Step> = ids.iter().map(|&id| model.step(&mut state, id)).collect();
    for _ in 0..GREEDY {
        let next = argmax(&steps[steps.len() - 1].logits);
        steps.push(model.step(&mut state, next));
    }
    steps
}

fn token_gap(logits: &[f64]) -> f64 {
    let mut logits = logits.to_vec();
    logits.sort_by(|a, b| b.total_cmp(a));
    logits[0] - logits[1]
}

fn router_gap(steps: &[Step]) -> f64 {
    let layers = steps.iter().flat_map(|step| &step.layers);
    let gaps = layers.filter_map(|layer| layer.routing.as_ref()).map(|routing| routing.gap);
    gaps.fold(f64::INFINITY, f64::min)
}
