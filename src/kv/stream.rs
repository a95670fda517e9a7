//! How a step of many tokens reads the history (spec/kv-offload.md 5): in pieces, of which those in
//! host memory are copied to the device first. So a row crosses the bus once for all queries of
//! the step, not once for each that attends to it.

use super::{IndexShape, KvLayer, KvSegment, KvSpan, KvStep, KvType};
use crate::{
    Result,
    gpu::{Buf, Gpu, Heap, Memory, MemoryKind},
};

/// Steps of at most so many tokens read the history in place.
pub const FEW: u32 = 8;

/// Tokens of a page: what is copied or, where no query selects any of it, left out as a whole.
pub const PAGE: u32 = 64;

/// Bytes of keys and values that a piece may have, unless told otherwise.
pub const STAGING: u64 = 32 << 20;

/// How a sequence's keys and values are kept.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Type of keys.
    pub k: KvType,
    /// Type of values.
    pub v: KvType,
    /// Bytes of keys and values that a piece of the history may have.
    pub staging: u64,
}

/// A part of the history that attention reads in one go.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The segment it is part of.
    pub segment: &'a KvSegment,
    /// Position of the first token.
    pub first: u32,
    /// Tokens, a power of two.
    pub tokens: u32,
}

impl<'a> Piece<'a> {
    /// All of `segment`.
    pub(super) fn whole(segment: &'a KvSegment) -> Self {
        Self { segment, first: segment.first, tokens: segment.tokens }
    }

    /// `segment` in parts of at most `most` tokens, a power of two.
    pub(super) fn cut(segment: &'a KvSegment, most: u32) -> impl Iterator<Item = Self> {
        let tokens = segment.tokens.min(most);
        let count = segment.tokens / tokens;
        (0..count).map(move |i| Self { segment, first: segment.first + i * tokens, tokens })
    }
}

/// Device memory that pieces of host segments are read from; any number of layers and recordings
/// may share it, one after the other.
#[derive(Debug)]
pub struct Staging {
    /// Room for one piece; it has the rows of one piece after the other.
    pub(crate) piece: KvSegment,
    /// The step's own keys and values, from the first page on that the step touches: they need not
    /// come back over the bus.
    pub(crate) chunk: KvSegment,
    /// u32 `[n]`: the row of `chunk` of every token of the step.
    pub(crate) places: Buf,
    /// A bit a page: whether any query of the step reads from it.
    pub(crate) pages: Buf,
    /// u64, low word first: bytes copied from host memory so far.
    copied: Buf,
}

impl Staging {
    /// For layers like `layer`, steps of up to `rows` tokens and up to `context` positions; to be
    /// [cleared](Self::clear) before use.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when memory is short.
    pub fn new(gpu: &dyn Memory, layer: &KvLayer, rows: u32, context: u32) -> Result<Self> {
        let segment = |tokens, kind| {
            let (k, v) = layer.row_bytes();
            Ok::<_, crate::Error>(KvSegment {
                k: gpu.alloc("staged keys", k * u64::from(tokens), kind)?,
                v: gpu.alloc("staged values", v * u64::from(tokens), kind)?,
                first: 0,
                tokens,
            })
        };
        let alloc = |label, bytes| gpu.alloc(label, bytes, MemoryKind::Scratch);
        Ok(Self {
            piece: segment(layer.piece(), MemoryKind::Staging)?,
            chunk: segment((rows + PAGE - 1).next_multiple_of(PAGE), MemoryKind::Scratch)?,
            places: alloc("places", u64::from(rows) * 4)?,
            pages: alloc("pages", u64::from(context.div_ceil(32 * PAGE)) * 4)?,
            copied: alloc("copied", 8)?,
        })
    }

    /// Nothing has been copied.
    pub fn clear(&self, gpu: &Gpu) {
        gpu.zero(&self.copied);
    }

    /// Writes what depends on the position, for a step of `n` tokens from `first` on.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub(crate) fn begin(&self, gpu: &Gpu, first: u32, n: u32) -> Result<()> {
        let places: Vec<u32> = (first % PAGE..).take(n as usize).collect();
        gpu.upload(&self.places, 0, bytemuck::cast_slice(&places))
    }

    /// The counter of bytes copied from host memory.
    pub(crate) fn counter(&self) -> &Buf {
        &self.copied
    }

    /// Bytes copied from host memory so far; waits for the device.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed.
    pub fn copied(&self, gpu: &Gpu) -> Result<u64> {
        Ok(bytemuck::pod_read_unaligned(&gpu.read(&self.copied, 0, 8)?))
    }
}

impl KvLayer {
    /// What of `span` a step of `n` queries had best read, each by itself the tokens that `sparse`
    /// says or all of them: whole segments in place where that is cheaper than copying the
    /// history, that is where the history is longer than all that the queries select. The last
    /// piece's first position stands for the history's length, so that every replay of a
    /// recording and every placement decide alike.
    pub fn cheapest(&self, span: KvSpan, n: u32, sparse: Option<IndexShape>) -> KvSpan {
        let (Some(shape), Some(pieces)) = (sparse, span.pieces) else { return span };
        let last = self.pieces().nth(pieces.saturating_sub(1) as usize);
        let history = last.map_or(0, |piece| u64::from(piece.first));
        let streams = history <= u64::from(n) * u64::from(shape.budget);
        KvSpan { pieces: span.pieces.filter(|_| streams), ..span }
    }
}

impl KvStep<'_> {
    /// Where this piece is to be copied before it is read; none: it is read in place.
    pub(crate) fn staged(&self, piece: &Piece<'_>) -> Option<&Staging> {
        self.staging.filter(|_| self.span.pieces.is_some() && piece.segment.heap() == Heap::Host)
    }

    /// Where the step's own rows are to be left on the device.
    pub(crate) fn kept(&self, segments: &[KvSegment]) -> Option<&Staging> {
        let streams = self.span.pieces.is_some();
        self.staging.filter(|_| streams && segments.iter().any(|s| s.heap() == Heap::Host))
    }
}
