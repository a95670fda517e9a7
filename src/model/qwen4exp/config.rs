//! What the metadata of a `qwen4exp` file say besides (spec/architectures.md 2, "qwen4exp only").

use serde::Serialize;

use crate::{
    Result,
    kv::IndexShape,
    model::{config::LayerKind, keys::Keys},
    ngram::{HashParams, NgramHash, TABLE},
};

/// Geometry of streams, indexer and n-gram embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qwen4ExpConfig {
    /// Residual streams of a token.
    pub streams: u32,
    /// Width between the two products that make the gates of the streams.
    pub low_rank: u32,
    /// What chooses the tokens that attention reads.
    pub indexer: Indexer,
    /// The n-gram embedding, in models that have it.
    pub ngram: Option<Ngram>,
}

/// Sizes of the indexer (spec/architectures.md 4.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Indexer {
    /// Query heads; there is one key head.
    pub n_head: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens of complete blocks that a query may attend to.
    pub budget: u32,
    /// Tokens of a block.
    pub ratio: u32,
}

impl Indexer {
    /// The same as index keys want it.
    pub fn shape(&self) -> IndexShape {
        let Self { n_head, head_dim, budget, ratio } = *self;
        IndexShape { heads: n_head, head_dim, ratio, budget }
    }
}

/// Sizes of the n-gram embedding (spec/architectures.md 4.5.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ngram {
    /// The layer that adds it to the streams.
    pub layer: u32,
    /// Ids of the longest n-gram: taps of the convolution are as many tokens apart.
    pub size: u32,
    /// Taps of the convolution.
    pub conv_kernel: u32,
    /// Width of a row of the table.
    pub row_width: u32,
    /// Rows of the table.
    pub table_rows: u32,
    /// Which of them belong to a token.
    #[serde(skip)]
    pub hash: NgramHash,
}

impl Ngram {
    /// Width of all rows of a token together.
    pub fn width(&self) -> u32 {
        self.hash.heads() as u32 * self.row_width
    }

    /// Normed values that the convolution looks back on.
    pub fn tail(&self) -> u32 {
        (self.conv_kernel - 1) * self.size
    }
}

const MAX_STREAMS: u32 = 16;
const MAX_LOW_RANK: u32 = 1 << 16;
const MAX_HEADS: u32 = 64;
const MAX_HEAD_DIM: u32 = 512;
const MAX_RATIO: u32 = 64;
const MAX_BUDGET: u32 = 1 << 20;
const MAX_ROW_WIDTH: u32 = 1 << 14;
const MAX_CONV_KERNEL: u32 = 16;
const MAX_NGRAM: u32 = 8;
/// The ratio of files whose converter left it out.
const USUAL_RATIO: u32 = 4;

impl Qwen4ExpConfig {
    /// Reads and checks the keys; attention layers of `layers` that choose what they read become
    /// [`LayerKind::SparseAttention`]. The first `n_rot` values of an indexer's head rotate.
    pub(in crate::model) fn read(
        keys: &Keys,
        rows: &dyn Fn(&str) -> Option<u64>,
        layers: &mut [LayerKind],
        n_rot: u32,
    ) -> Result<Self> {
        const STREAMS: &str = "hyper_connection.count";
        let streams = keys.count(STREAMS, MAX_STREAMS)?;
        if streams == 1 {
            return Err(keys.error(STREAMS, "is 1; there have to be several streams"));
        }
        Ok(Self {
            streams,
            low_rank: keys.count("hyper_connection.low_rank", MAX_LOW_RANK)?,
            indexer: indexer(keys, layers, n_rot)?,
            ngram: ngram(keys, rows(TABLE), layers)?,
        })
    }
}

fn indexer(keys: &Keys, layers: &mut [LayerKind], n_rot: u32) -> Result<Indexer> {
    const WIDTH: &str = "attention.indexer.key_length";
    const BUDGET: &str = "attention.indexer.top_k";
    let head_dim = keys.count(WIDTH, MAX_HEAD_DIM)?;
    if head_dim < n_rot {
        return Err(keys.error(WIDTH, &format!("is {head_dim}, less than the {n_rot} that rotate")));
    }
    let ratio = ratio(keys, layers)?;
    let budget = keys.count(BUDGET, MAX_BUDGET)?;
    if budget < ratio {
        return Err(keys.error(BUDGET, &format!("is {budget}, less than a block of {ratio}")));
    }
    Ok(Indexer {
        n_head: keys.count("attention.indexer.head_count", MAX_HEADS)?,
        head_dim,
        budget,
        ratio,
    })
}

/// Tokens a block. A known slip of a converter leaves no layer a ratio; attention is sparse all the
/// same, and the tensors that it then wants tell a file that lacks an indexer.
fn ratio(keys: &Keys, layers: &mut [LayerKind]) -> Result<u32> {
    const RATIOS: &str = "attention.compress_ratios";
    let mut ratios = keys.optional::<Vec<u32>>(RATIOS)?.unwrap_or_default();
    if ratios.iter().all(|&r| r == 0) {
        tracing::warn!(
            "`{}.{RATIOS}` gives no layer a ratio; attention is sparse with blocks of {USUAL_RATIO}",
            keys.arch
        );
        let usual = |kind: &LayerKind| match kind {
            LayerKind::Recurrent => 0,
            _ => USUAL_RATIO,
        };
        ratios = layers.iter().map(usual).collect();
    }
    if ratios.len() < layers.len() {
        let fault = format!("has {} entries for {} layers", ratios.len(), layers.len());
        return Err(keys.error(RATIOS, &fault));
    }
    let mut common = None;
    for (il, (kind, &ratio)) in layers.iter_mut().zip(&ratios).enumerate().filter(|l| *l.1.1 > 0) {
        let fault = if *kind == LayerKind::Recurrent {
            format!("is {ratio} for layer {il}, which has no attention")
        } else if ratio > MAX_RATIO || !ratio.is_power_of_two() {
            format!("is {ratio} for layer {il}, not a power of two up to {MAX_RATIO}")
        } else if *common.get_or_insert(ratio) != ratio {
            format!("differs from layer to layer ({}, {ratio})", common.unwrap_or_default())
        } else {
            *kind = LayerKind::SparseAttention;
            continue;
        };
        return Err(keys.error(RATIOS, &fault));
    }
    // Without any attention layer there is nothing to choose.
    Ok(common.unwrap_or(USUAL_RATIO))
}

fn ngram(keys: &Keys, rows: Option<u64>, layers: &[LayerKind]) -> Result<Option<Ngram>> {
    const LAYERS: &str = "ple.layers";
    let layer = match keys.optional::<Vec<u32>>(LAYERS)?.as_deref() {
        None => return Ok(None),
        Some([layer]) => *layer,
        Some(other) => {
            let fault = format!("has {} entries; exactly one is supported", other.len());
            return Err(keys.error(LAYERS, &fault));
        }
    };
    if layers.get(layer as usize) != Some(&LayerKind::Recurrent) {
        return Err(keys.error(LAYERS, &format!("is {layer}, which is no recurrent layer")));
    }
    let size = keys.count("ple.ngram_size", MAX_NGRAM)?;
    let hash = NgramHash::new(HashParams {
        ngram_size: size,
        heads_per_ngram: keys.require("ple.heads_per_ngram")?,
        eos_token_id: keys.require("ple.eos_token_id")?,
        layer_multipliers: keys.require("ple.layer_multipliers")?,
        head_offsets: keys.require("ple.head_offsets")?,
        head_vocab_sizes: keys.require("ple.head_vocab_sizes")?,
    })?;
    let reach = hash.table_rows();
    // A missing table is found with the other tensors.
    let rows = rows.unwrap_or(reach);
    let table_rows = u32::try_from(rows).ok().filter(|_| rows >= reach).ok_or_else(|| {
        let fault = format!("reach row {reach}, but the n-gram table has {rows} rows");
        keys.error("ple.head_vocab_sizes", &fault)
    })?;
    Ok(Some(Ngram {
        layer,
        size,
        conv_kernel: keys.count("ple.conv_kernel", MAX_CONV_KERNEL)?,
        row_width: keys.count("embedding_length_per_layer_input", MAX_ROW_WIDTH)?,
        table_rows,
        hash,
    }))
}
