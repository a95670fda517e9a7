//! The cache of one attention layer of one sequence, in power-of-two segments.

use super::{
    KvType,
    stream::{FEW, PAGE, Piece, STAGING, Staging},
};
use crate::{
    Error, Result,
    gpu::{Buf, Heap, Memory, MemoryKind},
    ops::Tokens,
    session::Extent,
};

/// Tokens of the first segment, where the context is not shorter. Each later one doubles the
/// capacity, so that at most half of the memory waits for use and a deep context is few segments.
const FIRST: u32 = 4096;

/// All segments of a sequence together hold its context, rounded up to a multiple of this.
pub const GRAIN: u32 = 256;

/// Tokens of the longest context: rounded up as segments are, they can be counted.
pub const LONGEST: u32 = 1 << 31;

/// Bytes of the largest segment's keys or values: a new segment is filled with zeros inside a
/// step, which has to stay short.
const MOST_BYTES: u64 = 128 << 20;

/// A segment that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Position of the first token.
    pub first: u32,
    /// Tokens there is room for, a power of two, at least [`KvType::TILE`].
    pub tokens: u32,
}

/// Keys and values of `tokens` consecutive positions.
#[derive(Clone, Debug)]
pub struct KvSegment {
    /// Keys `[token][kv head][head_dim]` in the layer's key type, laid out as [`KvType`] says.
    pub k: Buf,
    /// Values, likewise.
    pub v: Buf,
    /// Position of the first token.
    pub first: u32,
    /// Tokens there is room for, a power of two.
    pub tokens: u32,
}

impl KvSegment {
    /// The memory that keys and values lie in.
    pub fn heap(&self) -> Heap {
        self.k.heap()
    }
}

/// Which segments a recording binds: positions are written to `from..to`, history is read from
/// `0..to`. A recording for other positions is the same as long as their span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvSpan {
    /// First segment written to.
    pub from: u32,
    /// One past the last segment written to and read.
    pub to: u32,
    /// In steps of more than [`FEW`] tokens: how many pieces of the history have positions that
    /// the step reads ([`KvLayer::pieces`]). None: it reads whole segments, in place.
    pub pieces: Option<u32>,
}

/// A layer's cache as one step uses it.
#[derive(Clone, Copy, Debug)]
pub struct KvStep<'a> {
    /// The cache.
    pub layer: &'a KvLayer,
    /// Positions of the step's tokens, u32, those of a sequence consecutive, written by the host for every replay.
    pub positions: &'a Buf,
    /// The segments that any replay of the recording may touch.
    pub span: KvSpan,
    /// Where pieces of host segments are copied before they are read; none: they are read in place.
    pub staging: Option<&'a Staging>,
}

/// The segments `range` of a layer's, once `tokens` have positions.
pub(super) fn bound<'a, T>(
    segments: &'a [T],
    op: &str,
    positions: &Buf,
    tokens: Tokens,
    range: std::ops::Range<u32>,
) -> Result<&'a [T]> {
    if tokens.n == 0 || positions.size() < u64::from(tokens.end()) * 4 {
        return Err(Error::Shader(format!("{op}: no positions of {tokens:?}")));
    }
    segments
        .get(range.start as usize..range.end as usize)
        .filter(|segments| !segments.is_empty())
        .ok_or_else(|| Error::Shader(format!("{op}: there are no segments {range:?}")))
}

impl<'a> KvStep<'a> {
    /// The segments `range` of the span's, once shapes are checked: positions of `tokens`, a
    /// span within the layer.
    pub(crate) fn segments(
        &self,
        op: &str,
        tokens: Tokens,
        range: std::ops::Range<u32>,
    ) -> Result<&'a [KvSegment]> {
        bound(&self.layer.segments, op, self.positions, tokens, range)
    }

    /// The pieces that the step reads, by position, once shapes are checked.
    pub(crate) fn pieces(&self, op: &str, tokens: Tokens) -> Result<Vec<Piece<'a>>> {
        let segments = self.segments(op, tokens, 0..self.span.to)?;
        Ok(match self.span.pieces {
            None => segments.iter().map(Piece::whole).collect(),
            Some(pieces) => self.layer.pieces().take(pieces as usize).collect(),
        })
    }
}

/// The keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer {
    segments: Vec<KvSegment>,
    k_type: KvType,
    v_type: KvType,
    n_kv: u32,
    head_dim: u32,
    /// Tokens of the first and the largest segment.
    first: u32,
    largest: u32,
    /// Tokens of a piece at most.
    piece: u32,
}

impl KvLayer {
    /// An empty cache for `n_kv` key-value heads of `head_dim` values.
    ///
    /// # Errors
    /// [`Error::Model`] for a head size that is not a multiple of 8 within 8 to 512 or no heads;
    /// [`Error::Usage`] for one that a type does not take ([`KvType::check`]); [`Error::Device`]
    /// when a binding does not hold [`KvType::TILE`] tokens.
    pub fn new(
        gpu: &dyn Memory,
        n_kv: u32,
        head_dim: u32,
        k_type: KvType,
        v_type: KvType,
    ) -> Result<Self> {
        if n_kv == 0 || !head_dim.is_multiple_of(8) || !(8..=512).contains(&head_dim) {
            return Err(Error::Model(format!(
                "{n_kv} key-value heads of {head_dim} values: head sizes are multiples of 8 up to 512"
            )));
        }
        k_type.check(head_dim)?;
        v_type.check(head_dim)?;
        let row = k_type.bytes(head_dim.into()).max(v_type.bytes(head_dim.into()));
        let row = row * u64::from(n_kv);
        let most = u32::try_from(gpu.caps().max_binding.min(MOST_BYTES) / row);
        let most = most.unwrap_or(u32::MAX);
        if most < KvType::TILE {
            return Err(Error::Device(format!(
                "keys of {} tokens need {} bytes in one binding",
                KvType::TILE,
                row * u64::from(KvType::TILE)
            )));
        }
        let largest = 1 << most.ilog2();
        let (segments, first) = (Vec::new(), FIRST.min(largest));
        let layer = Self { segments, k_type, v_type, n_kv, head_dim, first, largest, piece: 0 };
        Ok(layer.with_staging(STAGING))
    }

    /// Pieces of as many tokens as have room in `bytes`, a power of two, at least a page.
    #[must_use]
    pub fn with_staging(mut self, bytes: u64) -> Self {
        let fitting = u32::try_from(bytes / self.bytes_per_token()).unwrap_or(u32::MAX);
        self.piece = (1 << fitting.max(1).ilog2()).clamp(PAGE, self.largest.max(PAGE));
        self
    }

    /// The same heads and types over one segment.
    pub(crate) fn over(&self, segment: KvSegment) -> Self {
        Self { segments: vec![segment], ..self.clone() }
    }

    /// Segments of `tokens` (a power of two) each, so that tests cross their borders.
    #[cfg(test)]
    pub(crate) fn with_segments_of(mut self, tokens: u32) -> Self {
        assert!(tokens.is_power_of_two() && (KvType::TILE..=self.largest).contains(&tokens));
        (self.first, self.largest) = (tokens, tokens);
        self
    }

    /// The segment that is missing for `tokens` tokens of a sequence that may grow to `context`.
    /// None is larger than the rest of the context asks for.
    ///
    /// # Errors
    /// [`Error::Context`] for more tokens than the context.
    pub fn missing(&self, tokens: u32, context: u32) -> Result<Option<Cut>> {
        if tokens > context {
            return Err(Error::Context(format!("{tokens} tokens exceed the context of {context}")));
        }
        let first = self.capacity();
        Ok((first < tokens).then(|| self.cut_at(first, context)))
    }

    /// The segment that follows `first` tokens, fewer than the `context`.
    fn cut_at(&self, first: u32, context: u32) -> Cut {
        let rest = context - first;
        // The power of two that the rest fills, and for the last tokens one that holds them.
        let filled = 1 << rest.checked_next_multiple_of(GRAIN).unwrap_or(rest).ilog2();
        let useful = rest.max(PAGE).checked_next_power_of_two();
        let useful = useful.unwrap_or(self.largest).min(filled);
        Cut { first, tokens: first.max(self.first).min(self.largest).min(useful) }
    }

    /// Tokens there will be room for once the sequence has grown to `context`.
    pub fn final_capacity(&self, context: u32) -> u32 {
        let mut capacity = self.capacity();
        while capacity < context {
            capacity += self.cut_at(capacity, context).tokens;
        }
        capacity
    }

    /// Adds the segment that [`Self::missing`] names, in `heap`.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short; the cache is as before.
    pub fn grow(&mut self, gpu: &dyn Memory, cut: Cut, heap: Heap) -> Result<()> {
        let values = u64::from(cut.tokens) * u64::from(self.n_kv) * u64::from(self.head_dim);
        let alloc = |label, ty: KvType| gpu.alloc_in(heap, label, ty.bytes(values), MemoryKind::Kv);
        let (k, v) = (alloc("keys", self.k_type)?, alloc("values", self.v_type)?);
        self.segments.push(KvSegment { k, v, first: cut.first, tokens: cut.tokens });
        Ok(())
    }

    /// Makes room for `tokens` tokens in `heap`, as [`Self::missing`] and [`Self::grow`] do.
    ///
    /// # Errors
    /// As there; what was added before stays.
    pub fn ensure(
        &mut self,
        gpu: &dyn Memory,
        tokens: u32,
        context: u32,
        heap: Heap,
    ) -> Result<()> {
        while let Some(cut) = self.missing(tokens, context)? {
            self.grow(gpu, cut, heap)?;
        }
        Ok(())
    }

    /// The segments that positions `first .. first + n` touch.
    ///
    /// # Errors
    /// [`Error::Context`] when there is no room for them.
    pub fn span(&self, first: u32, n: u32) -> Result<KvSpan> {
        let last = first.checked_add(n.max(1) - 1).filter(|last| *last < self.capacity());
        let Some(last) = last else {
            return Err(Error::Context(format!(
                "{n} tokens from {first} on exceed the {} there is room for",
                self.capacity()
            )));
        };
        let of = |position| self.segments.partition_point(|s| s.first + (s.tokens - 1) < position);
        let pieces = || self.pieces().take_while(|piece| piece.first <= last).count() as u32;
        let pieces = (n > FEW).then(pieces);
        Ok(KvSpan { from: of(first) as u32, to: of(last) as u32 + 1, pieces })
    }

    /// The history cut into pieces: segments, and the parts of those that are larger than a piece
    /// may be. The cut does not depend on where segments lie.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.segments.iter().flat_map(|segment| Piece::cut(segment, self.piece))
    }

    /// Tokens of a piece at most.
    pub fn piece(&self) -> u32 {
        self.piece
    }

    /// Bytes of a token's keys and of its values.
    pub fn row_bytes(&self) -> (u64, u64) {
        let values = u64::from(self.n_kv) * u64::from(self.head_dim);
        (self.k_type.bytes(values), self.v_type.bytes(values))
    }

    /// Bytes of a token's keys and values.
    pub fn bytes_per_token(&self) -> u64 {
        let (k, v) = self.row_bytes();
        k + v
    }

    /// Tokens there is room for.
    pub fn capacity(&self) -> u32 {
        self.segments.last().map_or(0, |s| s.first + s.tokens)
    }

    /// The segments, by position.
    pub fn segments(&self) -> &[KvSegment] {
        &self.segments
    }

    /// Keys and values of the first `n` tokens, by segment, in whole tiles of rows.
    pub(crate) fn filled(&self, n: u32) -> [Vec<Extent>; 2] {
        let (k, v) = self.row_bytes();
        let of = |row: u64, buf: fn(&KvSegment) -> &Buf| {
            let before = self.segments.iter().take_while(|segment| segment.first < n);
            let filled = before.map(|segment| {
                let tokens = (n - segment.first).min(segment.tokens);
                let bytes = row * u64::from(tokens.next_multiple_of(KvType::TILE));
                Extent { buf: buf(segment).clone(), bytes, tiles: None }
            });
            filled.collect()
        };
        [of(k, |segment| &segment.k), of(v, |segment| &segment.v)]
    }

    /// Element type of the keys.
    pub fn k_type(&self) -> KvType {
        self.k_type
    }

    /// Element type of the values.
    pub fn v_type(&self) -> KvType {
        self.v_type
    }

    /// Key-value heads.
    pub fn n_kv(&self) -> u32 {
        self.n_kv
    }

    /// Values a head.
    pub fn head_dim(&self) -> u32 {
        self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::each_device;

    fn sizes(kv: &KvLayer) -> Vec<(u32, u32)> {
        kv.segments().iter().map(|s| (s.first, s.tokens)).collect()
    }

    #[test]
    fn segments_double_and_stop_at_the_context() {
        each_device(|t| {
            let mut kv = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F32).unwrap();
            let ensure = |kv: &mut KvLayer, n, context| kv.ensure(&t.gpu, n, context, Heap::Device);
            ensure(&mut kv, 1, 1_000_000).unwrap();
            assert_eq!(kv.missing(4096, 1_000_000).unwrap(), None);
            ensure(&mut kv, 8193, 9000).unwrap();
            assert_eq!(sizes(&kv), [(0, 4096), (4096, 4096), (8192, 1024)]);
            assert!(matches!(ensure(&mut kv, 9001, 9000), Err(Error::Context(_))));
            let mut short = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F32).unwrap();
            ensure(&mut short, 3, 100).unwrap();
            assert_eq!(sizes(&short), [(0, 128)]);
        });
    }

    #[test]
    fn spans_name_the_segments_touched() {
        each_device(|t| {
            let kv = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F16).unwrap();
            let mut kv = kv.with_segments_of(64);
            kv.ensure(&t.gpu, 130, 1000, Heap::Device).unwrap();
            let span = |first, n| kv.span(first, n).map(|s| (s.from, s.to)).ok();
            assert_eq!(span(0, 1), Some((0, 1)));
            assert_eq!(span(0, 64), Some((0, 1)));
            assert_eq!(span(63, 2), Some((0, 2)));
            assert_eq!(span(64, 128), Some((1, 3)));
            assert_eq!(span(191, 1), Some((2, 3)));
            assert_eq!(span(191, 2), None);
            assert_eq!(span(u32::MAX, 2), None);
        });
    }

    #[test]
    fn segments_lie_where_they_are_put() {
        each_device(|t| {
            let mut kv = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F32).unwrap();
            let before = t.gpu.memory();
            kv.ensure(&t.gpu, 4096, 8192, Heap::Device).unwrap();
            let grown = kv.ensure(&t.gpu, 8192, 8192, Heap::Host);
            if !t.gpu.caps().host_buffers {
                let text = grown.unwrap_err().to_string();
                assert!(text.contains("keys cannot be in host memory"), "{text}");
                return;
            }
            grown.unwrap();
            let heaps: Vec<_> = kv.segments().iter().map(KvSegment::heap).collect();
            assert_eq!(heaps, [Heap::Device, Heap::Host]);
            let (now, bytes) = (t.gpu.memory(), 4096 * kv.bytes_per_token());
            assert_eq!(now.device.kv, before.device.kv + bytes);
            assert_eq!(now.host.kv, before.host.kv + bytes);
            drop(kv);
            assert_eq!(t.gpu.memory(), before);
        });
    }

    #[test]
    fn odd_head_sizes_are_refused_by_name() {
        each_device(|t| {
            for d in [0, 4, 12, 520] {
                let e = KvLayer::new(&t.gpu, 2, d, KvType::F16, KvType::F16).unwrap_err();
                assert!(e.to_string().contains(&format!("heads of {d} values")), "{e}");
            }
        });
    }
}
