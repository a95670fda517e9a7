//! What came of a step of several sequences, read with one wait.

use super::Engine;
use crate::{Result, ops::top_logits, sequence::Sequence};

/// What is to be read of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The largest of its last token's logits, as [`Engine::argmax`].
    Argmax,
    /// The largest of them, as [`Engine::top_logits`].
    Top,
    /// All of them, as [`Engine::logits`].
    Logits,
}

/// What was read of it.
#[derive(Debug)]
pub enum Outcome {
    /// An error is that sequence's alone.
    Argmax(Result<u32>),
    /// The same.
    Top(Result<Option<Vec<(u32, f32)>>>),
    /// One logit a token of the vocabulary.
    Logits(Vec<f32>),
}

/// The most bytes that are read of `sequences` at once.
pub(crate) fn most_bytes(n_vocab: u32, sequences: u32) -> u64 {
    (u64::from(n_vocab) * 4).max(top_logits::BYTES) * u64::from(sequences)
}

impl Engine {
    /// Reads what is wanted of each of at most [`Engine::together`] sequences.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn outcomes(&mut self, wanted: &[(&Sequence, Wanted)]) -> Result<Vec<Outcome>> {
        let logits = u64::from(self.config.n_vocab) * 4;
        let sources: Vec<_> = (wanted.iter())
            .map(|(seq, wanted)| match wanted {
                Wanted::Argmax => (&seq.choice, top_logits::BEST_BYTES),
                Wanted::Top => (&seq.choice, top_logits::BYTES),
                Wanted::Logits => (&seq.logits.buf, logits),
            })
            .collect();
        let mut bytes = vec![0; sources.iter().map(|(_, bytes)| *bytes as usize).sum()];
        self.readback.read_each(&self.gpu, &sources, &mut bytes)?;
        let mut rest = bytes.as_slice();
        let mut next = |bytes: u64| rest.split_off(..bytes as usize).unwrap_or_default();
        Ok((wanted.iter())
            .map(|(_, wanted)| match wanted {
                Wanted::Argmax => Outcome::Argmax(top_logits::best(next(top_logits::BEST_BYTES))),
                Wanted::Top => Outcome::Top(top_logits::top(next(top_logits::BYTES))),
                Wanted::Logits => Outcome::Logits(bytemuck::pod_collect_to_vec(next(logits))),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EngineOptions, demo,
        sample::{Sampler, SamplingParams},
    };

    #[test]
    fn a_sequence_without_usable_logits_is_alone_with_them() {
        let options = EngineOptions { sequences: 2, context: Some(64), ..Default::default() };
        let mut engine =
            Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap();
        let mut seqs = [0; 3].map(|_| engine.new_sequence().unwrap());
        let [alone, bad, good] = &mut seqs;
        engine.decode(alone, 7).unwrap();
        bad.state.fill(&engine.gpu, |count| vec![f32::NAN; count]).unwrap();
        engine.decode_each(&mut [(bad, 7), (good, 7)]).unwrap();
        let wanted = [(&*bad, Wanted::Argmax), (&*good, Wanted::Argmax), (&*good, Wanted::Logits)];
        // No more than step together at once.
        let mut outcomes = engine.outcomes(&wanted[..2]).unwrap();
        outcomes.extend(engine.outcomes(&wanted[2..]).unwrap());
        let [Outcome::Argmax(Err(_)), Outcome::Argmax(Ok(id)), Outcome::Logits(logits)] =
            &outcomes[..]
        else {
            panic!("{outcomes:?}")
        };
        let top = engine.outcomes(&[(&*bad, Wanted::Top), (&*good, Wanted::Top)]).unwrap();
        let [Outcome::Top(Err(_)), Outcome::Top(Ok(Some(top)))] = &top[..] else {
            panic!("{top:?}")
        };
        assert_eq!(*top, engine.top_logits(good).unwrap().unwrap());
        assert_eq!(*id, engine.argmax(alone).unwrap());
        assert_eq!(*logits, engine.logits(alone).unwrap());
    }

    /// The draw from the largest logits is that from all, seed by seed.
    #[test]
    fn the_largest_logits_say_what_all_say() {
        let options = EngineOptions { context: Some(64), ..Default::default() };
        let mut engine =
            Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ()).unwrap();
        let mut seq = engine.new_sequence().unwrap();
        let usual = SamplingParams { presence_penalty: 1.5, ..SamplingParams::default() };
        let wide = SamplingParams { top_k: 100, temperature: 1.5, ..SamplingParams::default() };
        for token in [1, 20, 300] {
            engine.decode(&mut seq, token).unwrap();
            let (all, top) = (engine.logits(&seq).unwrap(), engine.top_logits(&seq).unwrap());
            let top = top.expect("few are equal");
            assert!(top.len() >= engine.top());
            for (params, seed) in
                [&usual, &wide].into_iter().flat_map(|p| (0..40).map(move |s| (p, s)))
            {
                let params = SamplingParams { seed, ..params.clone() };
                let mut samplers = [0; 2].map(|_| Sampler::new(params.clone()).unwrap());
                samplers
                    .iter_mut()
                    .for_each(|s| [7, 8, 7].into_iter().for_each(|token| s.accept(token)));
                let [of_all, of_top] = &mut samplers;
                assert!(of_top.decisive().unwrap() <= engine.top());
                assert_eq!(of_top.sample_top(&top).unwrap(), of_all.sample(&all).unwrap());
            }
        }
    }
}
