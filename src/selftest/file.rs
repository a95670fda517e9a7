//! What can be checked of any model without knowing what it should answer.

use super::{Finding, Run, stored::filler};
use crate::{Engine, EngineOptions, Gguf, Result, ops::reference::Deviation, sequence::Sequence};
use std::ops::ControlFlow;

/// Tokens of the prompt: more than go through the kernels of few rows and single steps.
pub(super) const TOKENS: usize = 48;

/// Summing in another order can change which expert is the last one chosen, and that shows.
const LIMIT: f64 = 0.05;

/// Loads the model and adds checks of its logits.
pub(super) fn checks(run: &mut Run<'_>, gguf: &Gguf, options: &EngineOptions) -> Result<()> {
    let mut loaded = None;
    run.check("model: load", || {
        let engine = Engine::from_gguf(gguf, options, &mut |_, _| ())?;
        let (ids, sequence) = (filler(engine.tokenizer(), TOKENS)?, engine.new_sequence()?);
        let (engine, ..) = loaded.insert((engine, ids, sequence));
        Ok(Finding::loaded(engine))
    })?;
    let Some((mut engine, ids, mut sequence)) = loaded else { return Ok(()) };
    let engine = &mut engine;
    let mut whole = Vec::new();
    run.check("model: finite logits", || {
        whole = prefill(engine, &mut sequence, &ids)?;
        Ok(finite(&whole))
    })?;
    run.check("model: the same after clear", || {
        engine.clear(&mut sequence);
        let again = prefill(engine, &mut sequence, &ids)?;
        let bits = |logits: &[f32]| logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        Ok(Deviation::of("bits of logit", bits(&again), bits(&whole), 0.0).into())
    })?;
    run.check("model: token by token", || {
        engine.clear(&mut sequence);
        for id in &ids {
            engine.decode(&mut sequence, *id)?;
        }
        let steps = engine.logits(&sequence)?;
        Ok(Deviation::of("logit", steps, whole.iter().copied(), LIMIT).into())
    })
}

fn prefill(engine: &mut Engine, sequence: &mut Sequence, ids: &[u32]) -> Result<Vec<f32>> {
    engine.prefill(sequence, ids, &mut |_| ControlFlow::Continue(()))?;
    engine.logits(sequence)
}

fn finite(logits: &[f32]) -> Finding {
    if let Some(at) = logits.iter().position(|v| !v.is_finite()) {
        return Finding { ok: false, detail: format!("logit[{at}] is {}", logits[at]) };
    }
    let range = |(low, high): (f32, f32), v: &f32| (low.min(*v), high.max(*v));
    let (low, high) = logits.iter().fold((f32::INFINITY, f32::NEG_INFINITY), range);
    let detail = format!("{} logits from {low:.2} to {high:.2}", logits.len());
    Finding { ok: true, detail }
}
