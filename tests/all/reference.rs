//! The f64 forward pass against the published reference values, so that other tests can rely on
//! it where there are none.

use crate::common::{
    expected::{Expected, FLOAT32_LIMIT, HIDDEN_LIMIT, LayerTrace, Prompt},
    forward64::{LayerStep, Model, Step, argmax},
};

fn compare(expected: Expected) {
    let model = Model::open(&expected.model);
    for prompt in &expected.prompts {
        let mut state = model.state();
        let mut steps: Vec<Step> =
            prompt.ids.iter().map(|&id| model.step(&mut state, id)).collect();
        compare_positions(prompt, &steps);
        if let Some(trace) = &prompt.trace {
            for (step, embed) in steps.iter().zip(&trace.embed) {
                assert_close(&step.embed, embed, 0.0, "embedding");
            }
            for (i, layer) in trace.layers.iter().enumerate() {
                for (t, step) in steps.iter().enumerate() {
                    compare_layer(&step.layers[i], layer, t, &format!("layer {i}, token {t}"));
                }
            }
        }
        for (&token, gap) in prompt.greedy.iter().zip(&prompt.greedy_gap) {
            let logits = &steps.last().expect("no prompt is empty").logits;
            if *gap > FLOAT32_LIMIT {
                assert_eq!(argmax(logits), token, "{}: greedy token", prompt.name);
            }
            steps.push(model.step(&mut state, token));
        }
    }
}

fn compare_positions(prompt: &Prompt, steps: &[Step]) {
    for (k, &position) in prompt.positions.iter().enumerate() {
        let at = format!("{}, position {position}", prompt.name);
        assert_close(&steps[position].logits, &prompt.logits[k], FLOAT32_LIMIT, &at);
        for (i, (norm, first)) in prompt.hidden_norm.iter().zip(&prompt.hidden_first16).enumerate()
        {
            let hidden = &steps[position].layers[i].layer_out;
            let limit = HIDDEN_LIMIT * f64::from(norm[k]);
            let at = format!("{at}, layer {i}");
            assert_close(&[length(hidden)], &[norm[k]], limit, &at);
            assert_close(&hidden[..16], &first[k], limit, &at);
        }
    }
}

fn compare_layer(found: &LayerStep, expected: &LayerTrace, token: usize, at: &str) {
    let limit = HIDDEN_LIMIT * length(&found.layer_out);
    assert_close(&found.mixer_out, &expected.mixer_out[token], limit, at);
    assert_close(&found.ffn_out, &expected.ffn_out[token], limit, at);
    assert_close(&found.layer_out, &expected.layer_out[token], limit, at);
    if let Some(routing) = &found.routing {
        let (ids, weights): (Vec<i32>, Vec<f64>) =
            routing.chosen.iter().map(|&(id, weight)| (id as i32, weight)).unzip();
        assert_eq!(ids, expected.router_ids[token], "{at}: experts");
        assert_close(&weights, &expected.router_weights[token], HIDDEN_LIMIT, at);
    }
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn assert_close(found: &[f64], expected: &[f32], limit: f64, at: &str) {
    assert_eq!(found.len(), expected.len(), "{at}: length");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - f64::from(expected)).abs();
        assert!(difference <= limit, "{at}: value {i} is {found}, not {expected}");
    }
}

#[test]
fn llama() {
    compare(Expected::load("tiny-llama"));
}

#[test]
fn qwen3() {
    compare(Expected::load("tiny-qwen3"));
}

/// These values come from the same code: it is the stored files that are tested.
#[test]
fn qwen3moe() {
    compare(Expected::load("tiny-qwen3moe"));
}

#[test]
fn qwen35() {
    compare(Expected::load("tiny-qwen35"));
}

#[test]
fn qwen35moe() {
    compare(Expected::load("tiny-qwen35moe"));
}

#[test]
fn qwen35moe_without_its_draft_head() {
    compare(Expected::load("tiny-qwen35moe-mtp"));
}

#[test]
fn qwen35moe_quantised() {
    compare(Expected::load("mid-qwen35moe-Q8_0"));
    compare(Expected::load("mid-qwen35moe-Q4_K_M"));
}

#[test]
fn qwen35moe_quantised_shared() {
    for name in ["mid-qwen35moe-Q4_0", "mid-qwen35moe-Q6_K"] {
        if let Some(expected) = Expected::load_shared(name) {
            compare(expected);
        }
    }
}
