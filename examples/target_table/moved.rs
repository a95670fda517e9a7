//! What a small kernel of the decode path does in a whole dispatch, for one token at the shapes of the
//! model that uses it (spec/architectures.md 4.3 and 4.5): Qwen3.5-35B-A3B, or Qwen3.8-Flash-Next for
//! what has to do with streams, n-grams and selected blocks.

use crate::work::{bytes, number};
use engine::shader::{Value, Variant};

/// A dispatch.
pub(crate) struct Moved {
    /// Bytes that its workgroups read and write, each once.
    pub(crate) bytes: f64,
    /// Its invocations.
    pub(crate) lanes: f64,
    /// How often each loop runs within the one around it, in the program's order.
    pub(crate) rounds: Vec<f64>,
}

/// Values of a token between layers: of the one model, and in a stream of the other.
const WIDTH: f64 = 2048.0;
const STREAM: f64 = 2560.0;
/// Streams of a token.
const STREAMS: f64 = 4.0;
/// Tokens of the longest context.
const CONTEXT: f64 = 262_144.0;
const VOCABULARY: f64 = 248_320.0;
/// Values of a head of attention, and key-value heads.
const HEAD: f64 = 256.0;
const KV_HEADS: f64 = 2.0;
/// Bytes of the angles that a head is rotated by.
const ROPE: f64 = 256.0;
/// Values of a key of the indexer, tokens of a block, and blocks that a query selects.
const INDEX_HEAD: f64 = 128.0;
const BLOCK: f64 = 4.0;
const SELECTED: f64 = 512.0;

/// What `variant` moves, if it is such a kernel.
pub(crate) fn moved(variant: &Variant) -> Option<Moved> {
    let number = |name| number(variant, name);
    let on = |name| variant.get(name) == Some(&Value::On);
    let is = |name, word| variant.get(name) == Some(&Value::Word(word));
    // Bytes of a value that is there only with the flag.
    let with = |name, bytes: f64| if on(name) { bytes } else { 0.0 };
    let whole = with("whole", 2.5);
    // Loops before and after a sum over `wg` invocations: unrolled, or a loop over subgroups.
    let sum = |wg: f64| on("subgroup").then_some(wg / 32.0);
    let around = |before: &[f64], wg: f64, after: &[f64]| {
        before.iter().copied().chain(sum(wg)).chain(after.iter().copied()).collect()
    };
    let (bytes, lanes, rounds) = match variant.shader() {
        // A row. The narrower kernel is of neither model.
        "rms_norm" => {
            let wg = number("WG")?;
            let width = if wg < 256.0 { wg } else { WIDTH };
            let rounds = (width / (4.0 * wg)).ceil();
            (width * (12.0 + whole), wg, around(&[rounds], wg, &[rounds]))
        }
        // Every expert is compared with all.
        "routing" => {
            let (quads, wg) = (number("QUADS")?, number("WG")?);
            let experts = 4.0 * quads;
            let rounds = experts / wg;
            let bytes = 4.0 * (experts + 1.0) + 8.0 * number("SLOTS")? + 4.0;
            (bytes, wg, around(&[1.0, rounds, quads, rounds], wg, &[1.0]))
        }
        // x, weights and u; the tail read and written.
        "causal_conv" if on("add") => (STREAMS * STREAM * 100.0, STREAMS * STREAM, vec![1.0]),
        "causal_conv" => (8192.0 * 48.0, 8192.0, vec![1.0]),
        // Heads of the delta rule, one a workgroup.
        "gated_norm" => {
            let (heads, wg) = (if is("act", "silu") { 32.0 } else { 48.0 }, number("WG")?);
            let bytes = heads * 128.0 * (12.0 + whole) + 512.0;
            (bytes, heads * wg, around(&[1.0], wg, &[1.0]))
        }
        // Normed streams and their gates; m, and zeros.
        "hyper_mix" => (STREAM * (40.0 + whole), STREAM / 4.0, vec![4.0, STREAMS]),
        // x, gamma and n, of each stream; x again, and y once for all; a row for each output weighed.
        "hyper_inject" => {
            let wg = number("WG")?;
            let rounds = (STREAM / (4.0 * wg)).ceil();
            let value = 12.0 + with("inject", 5.0) + with("weigh", 4.0 * STREAMS) + whole;
            let mut all: Vec<f64> = around(&[rounds], wg, &[rounds]);
            // Its sums of four.
            all.extend(sum(wg).filter(|_| on("weigh")).into_iter().flat_map(|waves| [1.0, waves]));
            (STREAMS * STREAM * value, STREAMS * wg, all)
        }
        // k, x twice, three norms and what is normed, of each stream; v once for all.
        "ple_gate" => {
            let wg = number("WG")?;
            let rounds = (STREAM / wg).ceil();
            (STREAM * (28.0 * STREAMS + 4.0), STREAMS * wg, around(&[rounds], wg, &[rounds]))
        }
        // 16 weights an invocation, one copy.
        "embed_rows" => (WIDTH * (bytes(variant, "format")? + 4.0), WIDTH / 16.0, vec![1.0]),
        // The activations of 8 experts.
        "quantise" => (8.0 * 512.0 * 6.5, 8.0 * 512.0 / 4.0, vec![]),
        // The outputs of 8 experts.
        "expert_combine" => (WIDTH * (40.0 + with("shared", 4.0)), WIDTH, vec![8.0]),
        // 16 heads of attention, or 4 of the indexer.
        "qk_rope" => {
            let wg = number("WG")?;
            let heads = if wg < HEAD { 4.0 } else { 16.0 };
            let rounds = if on("norm") { around(&[1.0], wg, &[1.0]) } else { vec![1.0] };
            (heads * wg * 8.0 + with("norm", 4.0 * wg) + ROPE, heads * wg, rounds)
        }
        "kv_write" => {
            let (wg, value) = (number("WG")?, 8.0 + bytes(variant, "K")? + bytes(variant, "V")?);
            let rounds = if on("norm") { around(&[HEAD / wg], wg, &[]) } else { vec![] };
            (KV_HEADS * HEAD * value + with("norm", 4.0 * HEAD) + ROPE, KV_HEADS * wg, rounds)
        }
        // 16 heads of 64 splits, four in a round.
        "attention_merge" => {
            let bytes = 64.0 * (4.0 * HEAD + 8.0) + 4.0 * HEAD + with("gate", 4.0 * HEAD);
            (16.0 * bytes, 16.0 * number("WG")?, vec![16.0, 1.0, 16.0])
        }
        // A key that completes its block.
        "index_write" => {
            let (wg, stored) = (number("WG")?, (2.0 + BLOCK) * bytes(variant, "T")?);
            let rounds = around(&[1.0, 1.0, 1.0, BLOCK], wg, &[1.0]);
            (INDEX_HEAD * (8.0 + stored) + ROPE, wg, rounds)
        }
        // The first round, of the scores of all blocks, 8192 a workgroup; and the last, of what that has
        // left. Loops over earlier rounds, a copy of what is few, four digits, and thrice the candidates.
        "top_blocks" => {
            let groups = CONTEXT / BLOCK / 8192.0;
            let left = groups * SELECTED;
            let rounds = |before: f64, candidates: f64| {
                let share = candidates / 256.0;
                vec![before, 0.0, 4.0, share, share, share]
            };
            match on("blocks") {
                false => (4.0 * CONTEXT / BLOCK + 8.0 * left, groups * 256.0, rounds(0.0, 8192.0)),
                true => (4.0 * left + 12.0 * SELECTED, 256.0, rounds(1.0, left)),
            }
        }
        // Keys and values in f16 of the blocks and a part of one, a row a round, over 256 workgroups.
        "sparse_gather" => {
            let (rows, row) = (BLOCK * SELECTED + BLOCK - 1.0, 2.0 * KV_HEADS * HEAD);
            let cells = row / if on("words") { 4.0 } else { 16.0 } / 64.0;
            let rounds = vec![10.0, 10.0, (rows / 256.0).ceil(), cells, cells];
            (rows * row * 4.0 + SELECTED * 4.0, 256.0 * 64.0, rounds)
        }
        // Two searches of a list of blocks.
        "host_rows" => (2.0 * 9.0 * 4.0 + 20.0, 64.0, vec![1.0, 9.0, 9.0]),
        // 64 workgroups that leave the largest of 32 parts each.
        "top_logits" => {
            let (rounds, found) = ((VOCABULARY / 16_384.0).ceil(), 64.0 * 34.0 * 4.0);
            match variant.get("stage")? {
                Value::Word("scan") => (4.0 * VOCABULARY + found, 16_384.0, vec![rounds, 8.0]),
                Value::Word("merge") => (found, 256.0, vec![1.0, 32.0]),
                _ => (4.0 * VOCABULARY, 16_384.0, vec![rounds]),
            }
        }
        // Of neither model.
        "bias" => (WIDTH * 12.0, WIDTH, vec![]),
        _ => return None,
    };
    Some(Moved { bytes, lanes, rounds })
}
