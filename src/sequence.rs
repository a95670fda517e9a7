//! A sequence owns everything the engine remembers of one conversation.

use crate::{
    Result,
    engine::Member,
    gpu::{Buf, Memory, MemoryKind, Recording},
    kv::{CacheOptions, KvSpan},
    model::{self, ModelConfig, SequenceState},
    ops::Tensor,
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

/// The shape of a step: steps of the same shape, of the same sequences, share a recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// Tokens of each sequence, and the KV segments written; those before them are read.
    pub(crate) shares: Vec<(u32, Option<KvSpan>)>,
    /// Whether layers that select what they read have no need to.
    pub(crate) dense: bool,
    /// Whether the logits of each sequence's last token are wanted.
    pub(crate) head: bool,
}

impl StepShape {
    /// Tokens of all sequences.
    pub(crate) fn n(&self) -> u32 {
        self.shares.iter().map(|(n, _)| n).sum()
    }
}

/// Tokens, state and last logits of one conversation. Belongs to the engine that made it.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) state: SequenceState,
    /// Logits of the last token, `[1][n_vocab]`.
    pub(crate) logits: Tensor,
    /// The largest of them, as `ops::top_logits` writes them.
    pub(crate) choice: Buf,
    /// The pieces of every shape of step that it has taken alone.
    pub(crate) recordings: HashMap<StepShape, Vec<Recording>>,
    /// A step failed half-way: the state is neither before nor after it.
    pub(crate) broken: bool,
    /// Its name in steps that it takes with others.
    pub(crate) member: Member,
}

/// A point of a sequence that it can go back to: recurrent state cannot be cut to a length.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) position: usize,
    pub(crate) state: model::Checkpoint,
    /// The sequence's number and its tokens: keys and values are not part of a checkpoint, so it
    /// is one of these alone.
    of: (u64, u64),
}

impl Checkpoint {
    /// Tokens before this point.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.state.bytes()
    }
}

impl Sequence {
    pub(crate) fn new(
        gpu: &dyn Memory,
        config: &ModelConfig,
        cache: CacheOptions,
        member: Member,
    ) -> Result<Self> {
        Ok(Self {
            tokens: Vec::new(),
            state: SequenceState::new(gpu, config, cache)?,
            logits: Tensor::scratch(gpu, "logits", 1, config.n_vocab)?,
            choice: crate::ops::top_logits::buffer(gpu)?,
            recordings: HashMap::new(),
            broken: false,
            member,
        })
    }

    /// `state`, which is that after the first `position` tokens.
    pub(crate) fn checkpoint(&self, position: usize, state: model::Checkpoint) -> Checkpoint {
        Checkpoint { position, state, of: self.beginning(position) }
    }

    /// Whether `checkpoint` is one of this sequence, and the tokens before it are still there.
    pub(crate) fn has(&self, checkpoint: &Checkpoint) -> bool {
        let position = checkpoint.position;
        position <= self.tokens.len() && self.beginning(position) == checkpoint.of
    }

    /// What tells its first `position` tokens from all others.
    fn beginning(&self, position: usize) -> (u64, u64) {
        let mut hash = DefaultHasher::new();
        self.tokens[..position].hash(&mut hash);
        (self.member.number(), hash.finish())
    }

    /// A checkpoint after the first `position` tokens that nobody had to take: models without
    /// recurrent state can go back anywhere.
    pub fn checkpoint_at(&self, position: usize) -> Option<Checkpoint> {
        let state = self.state.checkpoint_of_nothing()?;
        let of = (position <= self.tokens.len()).then(|| self.beginning(position))?;
        Some(Checkpoint { position, state, of })
    }

    /// Whether a step has failed half-way, so that it has to be cleared or restored.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// All tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Dispatches of the recorded one-token step, if there was one.
    pub fn dispatches_per_token(&self) -> Option<usize> {
        Some(self.decoding()?.iter().map(Recording::dispatches).sum())
    }

    /// What the recorded one-token step binds, if there was one: op, kind and bytes of every
    /// binding. Of experts all are bound and few are read.
    pub fn bound_per_token(&self) -> Option<Vec<(&'static str, MemoryKind, u64)>> {
        Some(self.decoding()?.iter().flat_map(Recording::bound).collect())
    }

    fn decoding(&self) -> Option<&[Recording]> {
        let step = self.recordings.iter().find(|(shape, _)| shape.n() == 1)?;
        Some(step.1)
    }
}
