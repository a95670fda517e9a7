//! The demo model against its stored answers, and needles in texts of rising depth.

use super::{
    Finding,
    stored::{Answer, Needle, Prompt},
};
use crate::{Engine, Result, kv::KvType, ops::reference::Deviation};
use std::ops::ControlFlow;

/// Largest error of a logit, as a share of the largest: more where keys or values are rounded.
fn limit((k, v): (KvType, KvType)) -> f64 {
    let of = |ty| match ty {
        KvType::F32 => 1e-4,
        KvType::F16 | KvType::Bf16 | KvType::Q8_0 => 1e-3,
        KvType::Q4_0 => 5e-2,
    };
    f64::max(of(k), of(v))
}

/// Logits and tokens after a short prompt.
pub(super) fn prompt(
    engine: &mut Engine,
    prompt: &Prompt,
    cache: (KvType, KvType),
) -> Result<Finding> {
    let (logits, tokens) = greedy(engine, &prompt.ids, prompt.answer.safe)?;
    Ok(compare(&prompt.answer, &logits, &tokens, limit(cache)).into())
}

/// The answer to a question about a fact far back.
pub(super) fn needle(
    engine: &mut Engine,
    needle: &Needle,
    cache: (KvType, KvType),
) -> Result<Finding> {
    let ids = needle.ids(engine.tokenizer())?;
    let answer = engine.tokenizer().encode(&needle.answer, Default::default())?;
    let (logits, tokens) = greedy(engine, &ids, answer.len())?;
    if tokens != answer {
        let text = engine.tokenizer().decode(&tokens, true);
        let detail = format!("the answer is {text:?} instead of {:?}", needle.answer);
        return Ok(Finding { ok: false, detail });
    }
    Ok(match &needle.known {
        Some(known) => compare(&known.answer, &logits, &tokens, limit(cache)).into(),
        None => Finding { ok: true, detail: needle.answer.clone() },
    })
}

/// Logits after the last of `ids`, and the `n` tokens that follow.
fn greedy(engine: &mut Engine, ids: &[u32], n: usize) -> Result<(Vec<f32>, Vec<u32>)> {
    let mut sequence = engine.new_sequence()?;
    engine.prefill(&mut sequence, ids, &mut |_| ControlFlow::Continue(()))?;
    let logits = engine.logits(&sequence)?;
    let mut tokens = Vec::new();
    while tokens.len() < n {
        let token = engine.argmax(&sequence)?;
        tokens.push(token);
        engine.decode(&mut sequence, token)?;
    }
    Ok((logits, tokens))
}

/// The worse of logits and tokens.
fn compare(answer: &Answer, logits: &[f32], tokens: &[u32], limit: f64) -> Deviation {
    let (ids, want): (Vec<_>, Vec<_>) = answer.top5_last.iter().copied().unzip();
    let got = ids.iter().map(|id| logits.get(*id as usize).copied().unwrap_or(f32::NAN));
    let of_logits = Deviation::of("logit", got, want, limit);
    let same = answer.greedy.iter().take(tokens.len()).copied();
    let of_tokens = Deviation::of("token", tokens.iter().copied(), same, 0.0);
    if of_tokens.ok() { of_logits } else { of_tokens }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EngineOptions, demo,
        gpu::{DeviceOptions, Restrictions},
        selftest::Stored,
    };

    #[test]
    fn cooperative_matrices_answer_the_same() {
        let cache = (KvType::F16, KvType::F16);
        let restrict = Restrictions { matrices: Some(true), ..Restrictions::default() };
        let device = DeviceOptions { restrict, ..DeviceOptions::default() };
        let options = EngineOptions { context: Some(4096), device, ..EngineOptions::default() };
        let gguf = demo::open().unwrap();
        let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ()).unwrap();
        if engine.gpu().caps().matrices.is_none() {
            return println!(
                "skipped: {} has no cooperative matrices",
                engine.gpu().adapter().name
            );
        }
        let stored = Stored::open().unwrap();
        for prompt in &stored.prompts {
            let finding = super::prompt(&mut engine, prompt, cache).unwrap();
            println!("{}", finding.detail);
            assert!(finding.ok, "{}", finding.detail);
        }
    }

    #[test]
    fn other_answers_are_found_out() {
        let cache = (KvType::F16, KvType::F16);
        let gguf = demo::open().unwrap();
        let options = EngineOptions { context: Some(4096), ..EngineOptions::default() };
        let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ()).unwrap();
        let stored = Stored::open().unwrap();
        let mut check = |prompt: &Prompt| super::prompt(&mut engine, prompt, cache).unwrap();
        let right = &stored.prompts[0];
        assert!(check(right).ok);
        let mut wrong = right.clone();
        wrong.answer.top5_last[2].1 += 0.1;
        let finding = check(&wrong);
        assert!(!finding.ok && finding.detail.contains("logit[2] is "), "{}", finding.detail);
        let mut wrong = right.clone();
        wrong.answer.greedy[3] += 1;
        let finding = check(&wrong);
        assert!(!finding.ok && finding.detail.contains("token[3] is "), "{}", finding.detail);

        let tokenizer = engine.tokenizer();
        let mut lost = stored.needles[0].at(600, tokenizer).unwrap();
        assert!(super::needle(&mut engine, &lost, cache).unwrap().ok);
        lost.answer = lost.answer.replace("66203", "66204");
        let finding = super::needle(&mut engine, &lost, cache).unwrap();
        assert!(!finding.ok && finding.detail.contains("66203"), "{}", finding.detail);
    }
}
