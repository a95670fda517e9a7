//! The sampler of one request: parameters, penalty window and random numbers.

use rand::{RngExt, SeedableRng, TryRng, rngs::SysRng};
use rand_chacha::ChaCha8Rng;

use super::{
    SamplingParams,
    candidates::{Candidate, Candidates, each},
    penalty::Window,
};
use crate::{Error, Result};

/// Chooses tokens for one request (order of steps: spec/cli-and-server.md 3).
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    random: ChaCha8Rng,
    window: Window,
    /// Logits after bias and penalties; kept to reuse its memory.
    adjusted: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// Checks `params` and takes a random seed if they hold none.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameter out of range, [`Error::Sampling`] if the system
    /// has no random numbers.
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        let seed = match u64::try_from(params.seed) {
            Ok(seed) => seed,
            Err(_) => random_seed()?,
        };
        Ok(Self {
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            window: Window::new(params.repeat_last_n),
            params,
            adjusted: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    /// The parameters in force.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use: passed back as `seed` it reproduces the draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether every choice is the largest of the unchanged logits, which the GPU can find alone.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature <= 0.0 && !self.adjusts()
    }

    /// How many of the largest logits, with all that equal one of them, decide the choice whatever
    /// the others are; none: it takes all. Penalties that only take away bring none up from below,
    /// and let no more than one come after for each token that they push down.
    pub fn decisive(&self) -> Option<usize> {
        let Self { params, window, .. } = self;
        let draws = params.temperature > 0.0;
        let kept = match usize::try_from(params.top_k) {
            _ if !draws => 1,
            Ok(k) if k > 0 && params.top_n_sigma <= 0.0 => k,
            _ => return None,
        };
        let lowered = if params.penalises() { window.tokens() } else { 0 };
        let raises = params.repeat_penalty < 1.0
            || params.presence_penalty < 0.0
            || params.frequency_penalty < 0.0;
        let known = params.logit_bias.is_empty() && !(raises && lowered > 0);
        known.then_some(kept + lowered)
    }

    /// Shows the penalties a token of the prompt or one that was chosen.
    pub fn accept(&mut self, token: u32) {
        if self.params.penalises() {
            self.window.push(token);
        }
    }

    /// Chooses a token from the logits f32 `[vocab]` of one position.
    ///
    /// # Errors
    /// [`Error::Sampling`] if a logit is NaN or plus infinity, if all are minus infinity (also
    /// by bias), or if a biased token is outside the vocabulary.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let choice = if self.adjusts() {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.adjust(&mut adjusted).and_then(|()| self.choose(&adjusted))
        } else {
            self.choose(logits)
        };
        self.adjusted = adjusted;
        choice
    }

    /// Chooses as [`Self::sample`] does, from token and logit of no fewer than the
    /// [decisive](Self::decisive) ones of more than top_k usable logits, by token.
    ///
    /// # Errors
    /// [`Error::Sampling`] if none is left.
    pub fn sample_top(&mut self, top: &[(u32, f32)]) -> Result<u32> {
        let Self { params, window, candidates, .. } = self;
        let kept = if params.temperature > 0.0 { params.top_k.max(1) as usize } else { 1 };
        let penalises = params.penalises();
        let adjusted = top.iter().map(|&(id, logit)| match penalises {
            true => Candidate { id, logit: window.adjusted(params, id, logit) },
            false => Candidate { id, logit },
        });
        candidates.fill_top(adjusted, f32::MIN, kept);
        let best = candidates.first().ok_or_else(impossible)?;
        if params.temperature <= 0.0 {
            return Ok(best);
        }
        Ok(self.draw(best))
    }

    fn adjusts(&self) -> bool {
        !self.params.logit_bias.is_empty() || self.params.penalises()
    }

    fn adjust(&self, logits: &mut [f32]) -> Result<()> {
        let vocab = logits.len();
        for &(token, bias) in &self.params.logit_bias {
            let logit = logits.get_mut(token as usize).ok_or_else(|| {
                Error::Sampling(format!(
                    "logit_bias names token {token}, but the vocabulary has {vocab} tokens"
                ))
            })?;
            *logit += bias;
        }
        if self.params.penalises() {
            self.window.apply(&self.params, logits);
        }
        Ok(())
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        let best = argmax(logits)?;
        let Self { params, candidates, .. } = self;
        if params.temperature <= 0.0 {
            return Ok(best);
        }
        let floor = match params.top_n_sigma {
            n if n > 0.0 => (logits[best as usize] - n * deviation(logits)).max(f32::MIN),
            _ => f32::MIN,
        };
        match usize::try_from(params.top_k) {
            Ok(k) if k > 0 && k < logits.len() => candidates.fill_top(each(logits), floor, k),
            _ => candidates.fill(logits, floor),
        }
        Ok(self.draw(best))
    }

    /// Draws from the candidates that the later filters leave, or takes the best.
    fn draw(&mut self, best: u32) -> u32 {
        let Self { params, candidates, random, .. } = self;
        if params.typical_p < 1.0 {
            candidates.typical(params.typical_p);
        }
        if params.top_p < 1.0 {
            candidates.top_p(params.top_p);
        }
        if params.min_p > 0.0 {
            candidates.min_p(params.min_p);
        }
        candidates.draw(params.temperature, random.random()).unwrap_or(best)
    }
}

/// A seed of 32 bits survives every JSON reader, so that it can be passed back.
fn random_seed() -> Result<u64> {
    let seed = SysRng.try_next_u32();
    seed.map(u64::from).map_err(|e| Error::Sampling(format!("no random seed from the system: {e}")))
}

/// Token with the largest of the logits f32 `[vocab]`; the lowest id on ties.
///
/// # Errors
/// [`Error::Sampling`] if a logit is NaN or plus infinity or if all are minus infinity.
pub fn argmax(logits: &[f32]) -> Result<u32> {
    let mut max = f32::NEG_INFINITY;
    let mut best = None;
    for (id, &logit) in (0..).zip(logits) {
        if logit > max {
            if logit == f32::INFINITY {
                return Err(Error::Sampling(format!("the logit of token {id} is infinite")));
            }
            (max, best) = (logit, Some(id));
        } else if logit.is_nan() {
            return Err(Error::Sampling(format!("the logit of token {id} is not a number")));
        }
    }
    best.ok_or_else(impossible)
}

fn impossible() -> Error {
    Error::Sampling("all logits are minus infinity".into())
}

/// Standard deviation of the finite logits.
fn deviation(logits: &[f32]) -> f32 {
    let finite = || logits.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x));
    let count = finite().count() as f64;
    let mean = finite().sum::<f64>() / count;
    (finite().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt() as f32
}

#[cfg(test)]
mod tests;
