//! What `qwen4exp` has besides, spec/architectures.md 2 to 4: streams, indexer, n-gram embedding.

use engine::gguf::write::Writer;

use super::{ATTENTION_INTERVAL, CONV_KERNEL, Geometry, tensors::List};

/// The layer with the n-gram embedding.
const NGRAM_LAYER: u32 = 1;
/// Ids of the longest n-gram.
const NGRAM_SIZE: u32 = 3;
/// What ids are multiplied with, from the published model.
const MULTIPLIERS: [u64; NGRAM_SIZE as usize] =
    [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
/// End of text in the fixture whose tokenizer is taken.
const END_OF_TEXT: u32 = 576;

/// The sizes of streams, indexer and n-gram embedding. The default is that of Qwen3.8-Flash-Next
/// but for the rows of the n-gram table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) count: u32,
    /// Width between the two products that make the gates of the streams.
    pub(crate) low_rank: u32,
    pub(crate) index_heads: u32,
    pub(crate) index_dim: u32,
    /// Tokens of the blocks that a query attends to.
    pub(crate) budget: u32,
    /// Tokens a block.
    pub(crate) ratio: u32,
    /// N-gram heads for each of two and three ids.
    pub(crate) ngram_heads: u32,
    /// Width of a row of the n-gram table.
    pub(crate) ngram_width: u32,
    /// Rows of each head.
    pub(crate) ngram_rows: u32,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            count: 4,
            low_rank: 320,
            index_heads: 4,
            index_dim: 128,
            budget: 2048,
            ratio: 4,
            ngram_heads: 8,
            ngram_width: 160,
            ngram_rows: 4001,
        }
    }
}

impl Streams {
    /// N-gram heads in all.
    fn heads(&self) -> u32 {
        (NGRAM_SIZE - 1) * self.ngram_heads
    }

    pub(super) fn describe(&self, layers: u32, model: &mut Writer) {
        for (key, value) in [
            ("hyper_connection.count", self.count),
            ("hyper_connection.low_rank", self.low_rank),
            ("attention.indexer.head_count", self.index_heads),
            ("attention.indexer.key_length", self.index_dim),
            ("attention.indexer.top_k", self.budget),
            ("embedding_length_per_layer_input", self.ngram_width),
            ("ple.ngram_size", NGRAM_SIZE),
            ("ple.heads_per_ngram", self.ngram_heads),
            ("ple.conv_kernel", CONV_KERNEL),
            ("ple.eos_token_id", END_OF_TEXT),
        ] {
            model.set(&format!("qwen4exp.{key}"), value);
        }
        let ratio = |layer: u32| match (layer + 1).is_multiple_of(ATTENTION_INTERVAL) {
            true => self.ratio as i32,
            false => 0,
        };
        let ratios: Vec<i32> = (0..layers).map(ratio).collect();
        model.set("qwen4exp.attention.compress_ratios", &ratios[..]);
        model.set("qwen4exp.ple.layers", &[NGRAM_LAYER as i32][..]);
        let rows = u64::from(self.ngram_rows);
        let offsets: Vec<u64> = (0..u64::from(self.heads())).map(|head| head * rows).collect();
        model.set("qwen4exp.ple.layer_multipliers", &MULTIPLIERS[..]);
        model.set("qwen4exp.ple.head_vocab_sizes", &vec![rows; offsets.len()][..]);
        model.set("qwen4exp.ple.head_offsets", &offsets[..]);
    }

    /// Tensors of no layer.
    pub(super) fn globals(&self, embd: u32, list: &mut List) {
        self.mix("output_hc", embd, list);
        let rows = u64::from(self.heads() * self.ngram_rows);
        list.matrix("per_layer_token_embd", &[self.ngram_width.into(), rows]);
    }

    /// Tensors of `layer` instead of its norms.
    pub(super) fn layer(&self, geometry: &Geometry, layer: u32, list: &mut List) {
        let embd = u64::from(geometry.embd);
        let streams = u64::from(self.count) * embd;
        for name in ["hc_attn", "hc_ffn"] {
            self.mix(name, geometry.embd, list);
            list.matrix(&format!("{name}_inject"), &[streams, self.count.into()]);
        }
        if (layer + 1).is_multiple_of(ATTENTION_INTERVAL) {
            let dim = u64::from(self.index_dim);
            list.matrix("indexer.q_proj", &[embd, u64::from(self.index_heads) * dim]);
            list.matrix("indexer.k_proj", &[embd, dim]);
            list.norm("indexer.q_norm", dim);
            list.norm("indexer.k_norm", dim);
        }
        if layer == NGRAM_LAYER {
            let rows = u64::from(self.heads() * self.ngram_width);
            list.matrix("ple_key", &[rows, streams]);
            list.matrix("ple_value", &[rows, embd]);
            for norm in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
                list.norm(norm, streams);
            }
            list.float("ple_conv1d.weight", &[CONV_KERNEL.into(), streams], -0.5, 0.5);
        }
    }

    /// What mixes the streams into one.
    fn mix(&self, name: &str, embd: u32, list: &mut List) {
        let (streams, low_rank) = (u64::from(self.count * embd), u64::from(self.low_rank));
        list.norm(&format!("{name}_norm"), streams);
        list.matrix(&format!("{name}_down"), &[streams, low_rank]);
        list.matrix(&format!("{name}_up"), &[low_rank, streams]);
    }
}
