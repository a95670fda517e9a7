//! What came of a step of several sequences, read with one wait.

use super::Engine;
use crate::{Result, ops::argmax, sequence::Sequence};

/// What is to be read of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The largest of its last token's logits, as [`Engine::argmax`].
    Argmax,
    /// All of them, as [`Engine::logits`].
    Logits,
}

/// What was read of it.
#[derive(Debug)]
pub enum Outcome {
    /// An error is that sequence's alone.
    Argmax(Result<u32>),
    /// One logit a token of the vocabulary.
    Logits(Vec<f32>),
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
                Wanted::Argmax => (&seq.choice, argmax::BYTES),
                Wanted::Logits => (&seq.logits.buf, logits),
            })
            .collect();
        let mut bytes = vec![0; sources.iter().map(|(_, bytes)| *bytes as usize).sum()];
        self.readback.read_each(&self.gpu, &sources, &mut bytes)?;
        let mut rest = bytes.as_slice();
        let mut next = |bytes: u64| rest.split_off(..bytes as usize).unwrap_or_default();
        Ok((wanted.iter())
            .map(|(_, wanted)| match wanted {
                Wanted::Argmax => Outcome::Argmax(argmax::decode(next(argmax::BYTES))),
                Wanted::Logits => Outcome::Logits(bytemuck::pod_collect_to_vec(next(logits))),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineOptions, demo};

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
        assert_eq!(*id, engine.argmax(alone).unwrap());
        assert_eq!(*logits, engine.logits(alone).unwrap());
    }
}
