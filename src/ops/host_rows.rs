//! How many of the tokens that queries have selected lie in host memory, where a cache lies in both
//! memories: what crosses the bus (spec/kv-offload.md 6).

use super::{Tokens, top_blocks::Selection};
use crate::{
    Error, Result,
    gpu::{Buf, Gpu, Grid, Heap, Memory, MemoryKind, Recorder},
    kv::{IndexShape, KvSegment, KvStep},
    shader::Variant,
};

/// Counters on the device; any number of layers and recordings may share them.
#[derive(Clone, Debug)]
pub struct HostRows(pub(crate) Buf);

/// Rows of host memory that queries have attended to, summed over layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct HostRowCounts {
    /// In steps of one token.
    pub decode: u64,
    /// In longer steps that copy the history.
    pub streamed: u64,
    /// In longer steps that read it in place.
    pub in_place: u64,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    query: u32,
    end: u32,
    shift: u32,
    most: u32,
    first: u32,
    tokens: u32,
    counter: u32,
}

impl HostRows {
    /// To be [cleared](Self::clear) before use.
    ///
    /// # Errors
    /// [`Error::Device`] when memory is short.
    pub fn new(gpu: &dyn Memory) -> Result<Self> {
        let bytes = size_of::<HostRowCounts>() as u64;
        Ok(Self(gpu.alloc("host rows", bytes, MemoryKind::Scratch)?))
    }

    /// Nothing has been counted.
    pub fn clear(&self, gpu: &Gpu) {
        gpu.zero(&self.0);
    }

    /// The counts so far; waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn counts(&self, gpu: &Gpu) -> Result<HostRowCounts> {
        let bytes = gpu.read(&self.0, 0, size_of::<HostRowCounts>() as u64)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }
}

/// Adds what the queries of `tokens` attend to in host memory by `selection`; nothing where the
/// segments that the step reads are all in one memory, so that positions tell it.
///
/// # Errors
/// Shapes that do not fit.
pub(crate) fn record(
    rec: &mut Recorder,
    step: KvStep<'_>,
    (selection, shape): (&Selection, IndexShape),
    rows: &HostRows,
    tokens: impl Into<Tokens>,
) -> Result<()> {
    let tokens = tokens.into();
    let segments = step.segments("host_rows", tokens, 0..step.span.to)?;
    let on_host = |segment: &KvSegment| segment.heap() == Heap::Host;
    if segments.iter().all(on_host) || !segments.iter().any(on_host) {
        return Ok(());
    }
    if selection.rows < tokens.end() || selection.most != shape.most() {
        return Err(Error::Shader(format!(
            "host_rows: a selection for {} queries",
            selection.rows
        )));
    }
    let counter = match (tokens.n, step.span.pieces) {
        (1, _) => 0,
        (_, Some(_)) => 1,
        (_, None) => 2,
    };
    for run in segments.chunk_by(|a, b| a.heap() == b.heap()).filter(|run| on_host(&run[0])) {
        let room = run.iter().map(|segment| segment.tokens).sum();
        let (shift, most) = (shape.ratio.ilog2(), shape.most());
        let first = run[0].first;
        let (query, end) = (tokens.first, tokens.end());
        let params = Params { query, end, shift, most, first, tokens: room, counter };
        let bindings = [step.positions.into(), (&selection.blocks).into(), (&rows.0).into()];
        rec.dispatch("host_rows", &Variant::new("host_rows"), &bindings, &params, Grid::Flat(1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::{KvLayer, KvSpan, KvType},
        ops::testing::each_device,
    };

    const SHAPE: IndexShape = IndexShape { heads: 1, head_dim: 8, ratio: 4, budget: 16 };

    /// Segments of 64 tokens, of which the second, third and fifth are in host memory.
    #[test]
    fn tokens_of_host_segments_are_counted() {
        each_device(|t| {
            if !t.gpu.caps().host_buffers {
                return;
            }
            let mut kv = KvLayer::new(&t.gpu, 1, 8, KvType::F16, KvType::F16).unwrap();
            kv = kv.with_segments_of(64);
            for (i, heap) in [Heap::Device, Heap::Host, Heap::Host, Heap::Device, Heap::Host]
                .into_iter()
                .enumerate()
            {
                kv.ensure(&t.gpu, 64 * (i as u32 + 1), 320, heap).unwrap();
            }
            let rows = HostRows::new(&t.gpu).unwrap();
            rows.clear(&t.gpu);
            // The last complete block is the one before that of the position.
            let lists: [(u32, [u32; 4]); 3] = [
                (302, [15, 16, 47, 48]), // Blocks 16 and 47, and a tail of three.
                (255, [0, 20, 30, 40]),  // Three blocks, no tail.
                (300, [0, 1, 2, 63]),    // A tail of one.
            ];
            let selection = Selection::new(&t.gpu, SHAPE, 3).unwrap();
            let blocks: Vec<u32> = lists.iter().flat_map(|(_, blocks)| *blocks).collect();
            t.gpu.upload(&selection.blocks, 0, bytemuck::cast_slice(&blocks)).unwrap();
            let positions = t.gpu.alloc("positions", 12, MemoryKind::Scratch).unwrap();
            let at: Vec<u32> = lists.iter().map(|(at, _)| *at).collect();
            t.gpu.upload(&positions, 0, bytemuck::cast_slice(&at)).unwrap();
            let step = |pieces| KvStep {
                layer: &kv,
                positions: &positions,
                span: KvSpan { from: 4, to: 5, pieces },
                staging: None,
            };
            let chosen = (&selection, SHAPE);
            t.run(|rec| {
                record(rec, step(None), chosen, &rows, 1)?;
                record(rec, step(Some(9)), chosen, &rows, 2)?;
                record(rec, step(None), chosen, &rows, 3)
            });
            let first = 2 * 4 + 3;
            let want =
                HostRowCounts { decode: first, streamed: first + 12, in_place: first + 12 + 1 };
            assert_eq!(rows.counts(&t.gpu).unwrap(), want);
        });
    }
}
