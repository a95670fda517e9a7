//! Index keys of one sparse attention layer of one sequence (spec/architectures.md 4.5.4): the
//! raw key of every token and the pooled key of every complete block of tokens, in segments that
//! cover the same positions as those of the layer's keys and values.

use super::{KvLayer, KvSpan, KvType, layer::bound};
use crate::{
    Error, Result,
    gpu::{Buf, Memory, MemoryKind},
    ops::Tokens,
    session::{Extent, Tiles},
};

/// Blocks of a tile of pooled keys: of each eight values of a key, those of the tile's blocks lie
/// side by side, so that the lanes that score them read consecutive addresses.
const TILE: u32 = 32;

/// Positions that the first pooled keys are for. Every query is compared with all of them, so they
/// lie together for more positions than other keys: few dispatches read a deep context.
const FIRST_POOLED: u32 = 1 << 15;
/// The same of all later ones: they end at multiples of this.
const MOST_POOLED: u32 = 1 << 18;

/// Sizes of an indexer, and what they say of every query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexShape {
    /// Query heads.
    pub heads: u32,
    /// Values of a query head and of a key, a multiple of 8 up to 512.
    pub head_dim: u32,
    /// Tokens a block, a power of two.
    pub ratio: u32,
    /// Tokens of complete blocks that a query attends to at most.
    pub budget: u32,
}

impl IndexShape {
    /// Blocks that a query selects at most.
    pub fn most(&self) -> u32 {
        (self.budget / self.ratio).max(1)
    }

    /// Complete blocks that the query at `position` sees.
    pub fn complete(&self, position: u32) -> u32 {
        ((u64::from(position) + 1) / u64::from(self.ratio)) as u32
    }

    /// Tokens that the query at `position` attends to: selected blocks and the incomplete tail.
    pub fn attended(&self, position: u32) -> u32 {
        let tail = (position % self.ratio + 1) % self.ratio;
        self.complete(position).min(self.most()) * self.ratio + tail
    }

    /// Pooled keys that the query at `position` is compared with: none where all blocks are
    /// selected anyway.
    pub fn scanned(&self, position: u32) -> u32 {
        let complete = self.complete(position);
        if complete > self.most() { complete } else { 0 }
    }

    /// Whether `n` consecutive positions from `first` on attend to every token up to their own.
    pub fn sees_all(&self, first: u32, n: u32) -> bool {
        self.scanned(first.saturating_add(n.saturating_sub(1))) == 0
    }

    /// Blocks that `n` consecutive positions touch at most.
    pub fn touched(&self, n: u32) -> u32 {
        (n + self.ratio).saturating_sub(2) / self.ratio + 1
    }

    fn check(&self) -> Result<()> {
        let Self { heads, head_dim, ratio, budget } = *self;
        if heads == 0 || !head_dim.is_multiple_of(8) || !(8..=512).contains(&head_dim) {
            return Err(Error::Model(format!(
                "{heads} indexer heads of {head_dim} values: head sizes are multiples of 8 up to 512"
            )));
        }
        if !ratio.is_power_of_two() || ratio > 64 || budget < ratio {
            return Err(Error::Model(format!(
                "indexer blocks of {ratio} tokens and a budget of {budget}: blocks are powers of \
                 two up to 64 within the budget"
            )));
        }
        Ok(())
    }
}

/// Keys of complete blocks, normed and rotated.
#[derive(Clone, Debug)]
pub struct PooledKeys {
    /// `[block / 32][head_dim / 8][block % 32][8]`.
    pub keys: Buf,
    /// Position of the first block, a multiple of the block size.
    pub first: u32,
    /// Tokens whose blocks there is room for.
    pub tokens: u32,
}

/// Index keys of the positions of one [`super::KvSegment`].
#[derive(Clone, Debug)]
pub struct IndexSegment {
    /// Keys as projected, `[token][head_dim]`.
    pub raw: Buf,
    /// Position of the first token, a multiple of the block size.
    pub first: u32,
    /// Tokens there is room for.
    pub tokens: u32,
}

/// The index keys of one layer.
#[derive(Clone, Debug)]
pub struct IndexLayer {
    segments: Vec<IndexSegment>,
    pooled: Vec<PooledKeys>,
    shape: IndexShape,
    element: KvType,
}

/// A layer's index keys as one step uses them.
#[derive(Clone, Copy, Debug)]
pub struct IndexStep<'a> {
    /// The index keys.
    pub layer: &'a IndexLayer,
    /// Positions of the step's tokens, u32, those of a sequence consecutive, written by the host for every replay.
    pub positions: &'a Buf,
    /// The segments that any replay of the recording may touch.
    pub span: KvSpan,
}

impl<'a> IndexStep<'a> {
    /// The segments `range`, once `tokens` have positions.
    pub(crate) fn segments(
        &self,
        op: &str,
        tokens: Tokens,
        range: std::ops::Range<u32>,
    ) -> Result<&'a [IndexSegment]> {
        bound(&self.layer.segments, op, self.positions, tokens, range)
    }
}

impl IndexLayer {
    /// No keys yet. They are stored as `element`, whatever the type of the attention keys: f16
    /// does, f32 is for an f32 cache.
    ///
    /// # Errors
    /// [`Error::Model`] for head sizes that are no multiple of 8 within 8 to 512, blocks of other
    /// than a power of two up to 64 tokens, or a budget of less than a block.
    pub fn new(shape: IndexShape, element: KvType) -> Result<Self> {
        shape.check()?;
        Ok(Self { segments: Vec::new(), pooled: Vec::new(), shape, element })
    }

    /// Makes room for the positions that `kv` has room for: for raw keys in equal segments, which
    /// lie where the segment's keys and values do; for pooled ones, of which every step reads all,
    /// on the device, and for more positions of a sequence that may grow to `context`.
    ///
    /// # Errors
    /// [`Error::Device`] when a segment's keys exceed one binding or memory is short (what was
    /// added before stays).
    pub fn follow(&mut self, gpu: &dyn Memory, kv: &KvLayer, context: u32) -> Result<()> {
        for segment in &kv.segments()[self.segments.len()..] {
            let (first, tokens) = (segment.first, segment.tokens);
            if !first.is_multiple_of(self.shape.ratio) {
                return Err(Error::Device(format!(
                    "a cache segment at {first} splits an index block of {}",
                    self.shape.ratio
                )));
            }
            if self.pooled.last().is_none_or(|pooled| pooled.first + pooled.tokens <= first) {
                self.grow_pooled(gpu, first + tokens, kv.final_capacity(context), first)?;
            }
            let (bytes, kind) = (self.bytes(tokens), MemoryKind::IndexRaw);
            let raw = gpu.alloc_in(segment.heap(), "index keys", bytes, kind)?;
            self.segments.push(IndexSegment { raw, first, tokens });
        }
        Ok(())
    }

    /// Makes room for pooled keys from position `first` up to `end` at least, and `most` at most.
    fn grow_pooled(&mut self, gpu: &dyn Memory, end: u32, most: u32, first: u32) -> Result<()> {
        let room = |end: u32| self.pooled_bytes((end - first) / self.shape.ratio);
        let step = if first < FIRST_POOLED { FIRST_POOLED } else { MOST_POOLED };
        let wanted =
            (first / step).saturating_add(1).saturating_mul(step).clamp(end, most.max(end));
        // Segments are powers of two, and so are their positions: none is cut by `wanted`.
        let end = if room(wanted) <= gpu.caps().max_binding { wanted } else { end };
        let keys = gpu.alloc("pooled index keys", room(end), MemoryKind::IndexPooled)?;
        self.pooled.push(PooledKeys { keys, first, tokens: end - first });
        Ok(())
    }

    /// Bytes of the pooled keys of the first `blocks` blocks of [`PooledKeys`].
    pub(crate) fn pooled_bytes(&self, blocks: u32) -> u64 {
        self.bytes(blocks.next_multiple_of(TILE))
    }

    /// Bytes of `keys` keys, raw or pooled.
    pub fn bytes(&self, keys: u32) -> u64 {
        self.element.bytes(u64::from(keys) * u64::from(self.shape.head_dim))
    }

    /// Raw keys of the first `n` tokens and pooled keys of their complete blocks, buffer by buffer.
    pub(crate) fn filled(&self, n: u32) -> [Vec<Extent>; 2] {
        let chunk = self.element.bytes(8) as usize;
        let tiles = Tiles { rows: TILE as usize, chunks: self.shape.head_dim as usize / 8, chunk };
        let raw = self.segments.iter().take_while(|segment| segment.first < n);
        let raw = raw.map(|segment| Extent {
            buf: segment.raw.clone(),
            bytes: self.bytes((n - segment.first).min(segment.tokens)),
            tiles: None,
        });
        let pooled = self.pooled.iter().take_while(|pooled| pooled.first < n);
        let pooled = pooled.map(|pooled| Extent {
            buf: pooled.keys.clone(),
            bytes: self.bytes((n - pooled.first).min(pooled.tokens) / self.shape.ratio),
            tiles: Some(tiles),
        });
        [raw.collect(), pooled.collect()]
    }

    /// The pooled keys, by position.
    pub fn pooled(&self) -> &[PooledKeys] {
        &self.pooled
    }

    /// Those with the blocks of `segment`.
    ///
    /// # Errors
    /// [`Error::Shader`] when they are another layer's.
    pub(crate) fn pooled_of(&self, segment: &IndexSegment) -> Result<&PooledKeys> {
        let has = |pooled: &&PooledKeys| segment.first.wrapping_sub(pooled.first) < pooled.tokens;
        let found = self.pooled.iter().find(has);
        found.ok_or_else(|| Error::Shader(format!("no pooled keys from {} on", segment.first)))
    }

    /// The segments, by position.
    pub fn segments(&self) -> &[IndexSegment] {
        &self.segments
    }

    /// Sizes.
    pub fn shape(&self) -> IndexShape {
        self.shape
    }

    /// Element type of raw and pooled keys.
    pub fn element(&self) -> KvType {
        self.element
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::{Caps, Heap, Ledger},
        ops::testing::each_device,
    };

    const SHAPE: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };

    #[test]
    fn what_queries_see_around_the_budget() {
        // The first query that can drop something has 2052 tokens visible.
        for position in 0..2051 {
            assert_eq!((SHAPE.attended(position), SHAPE.scanned(position)), (position + 1, 0));
        }
        let seen = |p| (SHAPE.complete(p), SHAPE.attended(p), SHAPE.scanned(p));
        assert_eq!(seen(2051), (513, 2048, 513));
        assert_eq!(seen(2054), (513, 2051, 513));
        assert_eq!(seen(u32::MAX), (1 << 30, 2048, 1 << 30));
        assert_eq!(SHAPE.attended(4095), SHAPE.attended(262_143));
    }

    #[test]
    fn blocks_touched() {
        for ratio in [1, 4, 8] {
            let shape = IndexShape { ratio, ..SHAPE };
            for n in 1..40 {
                let at = |first: u32| (first + n - 1) / ratio - first / ratio + 1;
                assert_eq!(Some(shape.touched(n)), (0..ratio).map(at).max(), "{n} of {ratio}");
            }
        }
    }

    #[test]
    fn segments_cover_those_of_the_cache() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F32).unwrap();
            let mut kv = kv.with_segments_of(64);
            let mut index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
            for tokens in [1, 64, 65, 200] {
                kv.ensure(&t.gpu, tokens, 1000, Heap::Device).unwrap();
                index.follow(&t.gpu, &kv, 1000).unwrap();
                let cut: Vec<_> = kv.segments().iter().map(|s| (s.first, s.tokens)).collect();
                let mine: Vec<_> = index.segments().iter().map(|s| (s.first, s.tokens)).collect();
                assert_eq!(cut, mine);
            }
            assert_eq!(index.segments()[3].raw.size(), 64 * 128 * 2);
        });
    }

    /// Of segments by first position and tokens.
    fn pooled(index: &IndexLayer) -> Vec<(u32, u32)> {
        index.pooled().iter().map(|p| (p.first, p.tokens)).collect()
    }

    #[test]
    fn pooled_keys_lie_together_and_take_what_the_context_takes() {
        let ledger = Ledger::new(Caps::usual());
        for (context, want) in [
            (100, &[(0, 128)][..]),
            (9000, &[(0, 9216)]),
            (262_144, &[(0, 32_768), (32_768, 229_376)]),
            (300_000, &[(0, 32_768), (32_768, 229_376), (262_144, 37_888)]),
            (
                1 << 20,
                &[
                    (0, 32_768),
                    (32_768, 229_376),
                    (262_144, 262_144),
                    (524_288, 262_144),
                    (786_432, 262_144),
                ],
            ),
        ] {
            let mut kv = KvLayer::new(&ledger, 2, 256, KvType::F16, KvType::F16).unwrap();
            let mut index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
            while kv.capacity() < context {
                kv.ensure(&ledger, kv.capacity() + 1, context, Heap::Device).unwrap();
                index.follow(&ledger, &kv, context).unwrap();
                index.segments().iter().for_each(|s| {
                    let pooled = index.pooled_of(s).unwrap();
                    assert!(s.first + s.tokens <= pooled.first + pooled.tokens);
                });
            }
            assert_eq!(pooled(&index), want, "{context}");
            assert_eq!(ledger.memory().device.index_pooled, index.bytes(kv.capacity() / 4));
        }
    }

    #[test]
    fn pooled_keys_fit_a_binding() {
        let ledger = Ledger::new(Caps { max_binding: 1024 * 256, ..Caps::usual() });
        let kv = KvLayer::new(&ledger, 1, 8, KvType::F16, KvType::F16).unwrap();
        let mut kv = kv.with_segments_of(1024);
        let mut index = IndexLayer::new(SHAPE, KvType::F16).unwrap();
        kv.ensure(&ledger, 2500, 1 << 20, Heap::Device).unwrap();
        index.follow(&ledger, &kv, 1 << 20).unwrap();
        assert_eq!(pooled(&index), [(0, 1024), (1024, 1024), (2048, 1024)]);
    }

    #[test]
    fn odd_shapes_are_refused_by_name() {
        for (shape, named) in [
            (IndexShape { heads: 0, ..SHAPE }, "0 indexer heads"),
            (IndexShape { head_dim: 12, ..SHAPE }, "heads of 12 values"),
            (IndexShape { ratio: 3, ..SHAPE }, "blocks of 3 tokens"),
            (IndexShape { ratio: 0, ..SHAPE }, "blocks of 0 tokens"),
            (IndexShape { budget: 3, ..SHAPE }, "a budget of 3"),
        ] {
            let text = IndexLayer::new(shape, KvType::F16).unwrap_err().to_string();
            assert!(text.contains(named), "{text}");
        }
    }
}
