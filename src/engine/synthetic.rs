//! Histories that nobody wrote, to measure steps at a depth without a prefill of hours.

use super::{Engine, step::shares};
use crate::{
    Error, Result,
    gpu::{Recorder, Recording},
    model::workspace::Step,
    sequence::{Sequence, StepShape},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Noise of a uniform distribution within `limit`, the same for every history.
struct Noise(ChaCha8Rng);

impl Noise {
    fn values(&mut self, count: usize, limit: f32) -> Vec<f32> {
        (0..count).map(|_| self.0.random_range(-limit..limit)).collect()
    }
}

/// Bound of values whose mean square is 1, as that of keys and values is about.
const UNIT: f32 = 1.732;
/// Bound of values of recurrent state.
const SMALL: f32 = 0.2;

impl Engine {
    /// Replaces what `seq` holds by `tokens` random tokens with random state: keys, values and
    /// index keys of every position are distinct, finite and of usual size, in all segments that a
    /// prefill would have made. Steps from there on do the same work, and read the same bytes, as
    /// after a prefill; what they say means nothing. The same count gives the same state.
    ///
    /// # Errors
    /// [`Error::Context`] for more tokens than the context; [`Error::Device`] when memory is
    /// short.
    pub fn synthetic_history(&mut self, seq: &mut Sequence, tokens: u32) -> Result<()> {
        if tokens > self.context {
            return Err(Error::Context(format!(
                "a history of {tokens} tokens does not fit the context of {}",
                self.context
            )));
        }
        self.clear(seq);
        let mut noise = Noise(ChaCha8Rng::seed_from_u64(0));
        seq.broken = true;
        seq.state.fill(&self.gpu, |count| noise.values(count, SMALL))?;
        let mut writes: Option<(StepShape, Recording)> = None;
        while (seq.tokens.len() as u32) < tokens {
            let n = self.ws.rows.min(tokens - seq.tokens.len() as u32);
            let shape = StepShape {
                shares: self.prepare_places(&mut [(seq, n)])?,
                dense: true,
                head: false,
            };
            self.write_noise(n, &mut noise)?;
            let recording = match writes.take() {
                Some((same, recording)) if same == shape => recording,
                _ => self.record_writes(seq, &shape)?,
            };
            self.gpu.submit(&recording)?;
            writes = Some((shape, recording));
            let n_vocab = self.config.n_vocab;
            seq.tokens.extend((0..n).map(|_| noise.0.random_range(0..n_vocab)));
        }
        seq.broken = false;
        Ok(())
    }

    /// Keys, values and index keys of `n` tokens, as if projected.
    fn write_noise(&self, n: u32, noise: &mut Noise) -> Result<()> {
        let attention = &self.ws.attention;
        let index = self.ws.indexer.as_ref().map(|space| &space.k);
        for tensor in [&attention.k, &attention.v].into_iter().chain(index) {
            let values = noise.values(n as usize * tensor.width as usize, UNIT);
            self.gpu.upload(&tensor.buf, 0, bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }

    fn record_writes(&self, seq: &Sequence, shape: &StepShape) -> Result<Recording> {
        let mut rec = Recorder::new(&self.gpu);
        let (n, shares) = (shape.n(), &shares(&[seq], shape));
        let step = Step { config: &self.config, ws: &self.ws, n, shares, dense: true, read: false };
        self.model.record_writes(&mut rec, &step)?;
        rec.finish()
    }
}
