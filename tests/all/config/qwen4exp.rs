//! The keys that only `qwen4exp` has.

use super::{Attention, Recurrent, check, fixture, open, refused};
use engine::Result;
use engine::gguf::{Value, write::Writer};
use engine::model::arch::Arch;
use engine::model::config::{LayerKind::SparseAttention, ModelConfig};
use engine::model::qwen4exp::{Indexer, Qwen4ExpConfig};
use engine::model::tensors::{check_tensors, expected_tensors};
use engine::quant::BlockType;

/// Metadata of the real Qwen3.8-Flash-Next, without tensors.
fn flash_next() -> Writer {
    let mut model = Writer::default();
    let ratios: Vec<i32> = (0..48).map(|il| if il % 4 == 3 { 4 } else { 0 }).collect();
    let sizes: Vec<u64> = vec![20_000_000; 16];
    let offsets: Vec<u64> = (0..16).map(|h| h * 20_000_000).collect();
    model
        .set("general.architecture", "qwen4exp")
        .set("qwen4exp.block_count", 48u32)
        .set("qwen4exp.context_length", 262_144u32)
        .set("qwen4exp.embedding_length", 2560u32)
        .set("qwen4exp.attention.head_count", 24u32)
        .set("qwen4exp.attention.head_count_kv", 2u32)
        .set("qwen4exp.attention.key_length", 256u32)
        .set("qwen4exp.attention.value_length", 256u32)
        .set("qwen4exp.attention.layer_norm_rms_epsilon", 1e-6f32)
        .set("qwen4exp.vocab_size", 248_320u32)
        .set("qwen4exp.rope.dimension_count", 64u32)
        .set("qwen4exp.rope.dimension_sections", &[11i32, 11, 10, 0][..])
        .set("qwen4exp.rope.freq_base", 1e7f32)
        .set("qwen4exp.expert_count", 512u32)
        .set("qwen4exp.expert_used_count", 10u32)
        .set("qwen4exp.expert_feed_forward_length", 640u32)
        .set("qwen4exp.expert_shared_feed_forward_length", 640u32)
        .set("qwen4exp.ssm.conv_kernel", 4u32)
        .set("qwen4exp.ssm.state_size", 128u32)
        .set("qwen4exp.ssm.group_count", 16u32)
        .set("qwen4exp.ssm.time_step_rank", 48u32)
        .set("qwen4exp.ssm.inner_size", 6144u32)
        .set("qwen4exp.hyper_connection.count", 4u32)
        .set("qwen4exp.hyper_connection.low_rank", 320u32)
        .set("qwen4exp.attention.indexer.head_count", 4u32)
        .set("qwen4exp.attention.indexer.key_length", 128u32)
        .set("qwen4exp.attention.indexer.top_k", 2048u32)
        .set("qwen4exp.attention.compress_ratios", &ratios[..])
        .set("qwen4exp.ple.layers", &[1i32][..])
        .set("qwen4exp.ple.ngram_size", 3u32)
        .set("qwen4exp.ple.heads_per_ngram", 8u32)
        .set("qwen4exp.ple.conv_kernel", 4u32)
        .set("qwen4exp.ple.eos_token_id", 248_044u32)
        .set("qwen4exp.embedding_length_per_layer_input", 160u32)
        .set("qwen4exp.ple.layer_multipliers", &[3u64, 5, 7][..])
        .set("qwen4exp.ple.head_offsets", &offsets[..])
        .set("qwen4exp.ple.head_vocab_sizes", &sizes[..]);
    model
}

fn read(test: &str, model: &Writer) -> Result<ModelConfig> {
    ModelConfig::from_gguf(&open(test, model))
}

fn extra(config: &ModelConfig) -> &Qwen4ExpConfig {
    config.qwen4exp.as_ref().expect("a qwen4exp model")
}

#[test]
fn the_fixture() -> Result<()> {
    let gguf = fixture("tiny-qwen4exp");
    let config = ModelConfig::from_gguf(&gguf)?;
    assert_eq!((config.arch, config.n_streams(), extra(&config).low_rank), (Arch::Qwen4Exp, 4, 32));
    let indexer = Indexer { n_head: 4, head_dim: 32, budget: 32, ratio: 4 };
    assert_eq!(extra(&config).indexer, indexer);
    let block = [Recurrent, Recurrent, Recurrent, SparseAttention];
    assert_eq!(config.layers, [block, block].concat());
    let ngram = config.ngram().expect("an n-gram embedding");
    assert_eq!((ngram.layer, ngram.width(), ngram.tail(), ngram.table_rows), (1, 128, 9, 4352));
    assert_eq!(check_tensors(&config, &gguf)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn the_real_model_has_the_known_number_of_tensors() -> Result<()> {
    let config = read("flash-next", &flash_next())?;
    assert_eq!(expected_tensors(&config, |_| false).len(), 1224);
    assert!(config.gated_attention && config.n_mtp == 0);
    Ok(())
}

#[test]
fn without_an_n_gram_embedding() -> Result<()> {
    let mut model = flash_next();
    model.unset("qwen4exp.ple.layers");
    let config = read("no-ngram", &model)?;
    assert!(config.ngram().is_none());
    assert!(expected_tensors(&config, |_| false).iter().all(|t| !t.name.contains("ple_")));
    Ok(())
}

/// The known slip of a converter: attention is sparse all the same.
#[test]
fn ratios_that_are_absent_or_zero_mean_four() -> Result<()> {
    let right = read("ratios", &flash_next())?;
    let mut model = flash_next();
    model.set("qwen4exp.attention.compress_ratios", &[0i32; 48][..]);
    assert_eq!(read("ratios-0", &model)?, right);
    assert_eq!(read("ratios-absent", model.unset("qwen4exp.attention.compress_ratios"))?, right);
    Ok(())
}

#[test]
fn a_layer_without_a_ratio_is_dense() -> Result<()> {
    let mut model = flash_next();
    let ratios: Vec<u32> = (0..48).map(|il| if il == 3 { 8 } else { 0 }).collect();
    model.set("qwen4exp.attention.compress_ratios", &ratios[..]);
    let config = read("ratios-some", &model)?;
    assert_eq!((config.layers[3], config.layers[7]), (SparseAttention, Attention));
    assert_eq!(extra(&config).indexer.ratio, 8);
    Ok(())
}

#[test]
fn an_indexer_that_is_missing_is_an_error() -> Result<()> {
    let mut model = small();
    let error = check("no-indexer", model.clone(), 0.0, |name, _| !name.contains("indexer"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`blk.1.indexer.k_proj.weight` is missing"), "{error}");
    // Also where no layer has a ratio: never dense attention in silence.
    model.set("qwen4exp.attention.compress_ratios", &[0i32; 2][..]);
    let error = check("no-indexer-0", model, 0.0, |name, _| !name.contains("indexer"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`blk.1.indexer.q_norm.weight` is missing"), "{error}");
    Ok(())
}

/// The same with two small layers.
fn small() -> Writer {
    let mut model = flash_next();
    model
        .set("qwen4exp.block_count", 2u32)
        .set("qwen4exp.full_attention_interval", 2u32)
        .set("qwen4exp.embedding_length", 16u32)
        .set("qwen4exp.vocab_size", 10u32)
        .set("qwen4exp.expert_count", 2u32)
        .set("qwen4exp.expert_used_count", 1u32)
        .set("qwen4exp.attention.compress_ratios", &[0i32, 4][..])
        .set("qwen4exp.ple.layers", &[0i32][..])
        .set("qwen4exp.ple.head_offsets", &[0u64; 16][..])
        .set("qwen4exp.ple.head_vocab_sizes", &[9u64; 16][..]);
    model
}

#[test]
fn all_required_tensors_are_enough() -> Result<()> {
    assert!(check("small", small(), 0.0, |_, _| true)?.is_empty());
    Ok(())
}

#[test]
fn a_table_of_too_few_rows_is_refused() {
    let mut model = small();
    model.tensor("per_layer_token_embd.weight", BlockType::F32, &[160, 8]);
    refused("few-rows", &model, &["ple.head_vocab_sizes", "row 9", "8 rows"]);
}

#[test]
fn required_keys_are_named_when_missing() {
    for key in [
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
        "embedding_length_per_layer_input",
    ] {
        let key = format!("qwen4exp.{key}");
        refused("missing-4", flash_next().unset(&key), &[&format!("`{key}`"), "missing"]);
    }
}

#[test]
fn wrong_values_are_named() {
    let mut uneven = [0i32; 48];
    (uneven[3], uneven[7]) = (4, 8);
    let wrong: &[(&str, Value, &[&str])] = &[
        ("hyper_connection.count", 1u32.into(), &["1", "several"]),
        ("hyper_connection.count", 17u32.into(), &["17", "16"]),
        ("hyper_connection.low_rank", 0u32.into(), &["0"]),
        ("attention.indexer.head_count", 0u32.into(), &["0"]),
        ("attention.indexer.key_length", 32u32.into(), &["32", "64"]),
        ("attention.indexer.top_k", 3u32.into(), &["3", "4"]),
        ("attention.indexer.top_k", u32::MAX.into(), &["4294967295", "1048576"]),
        ("attention.compress_ratios", (&[4i32; 47][..]).into(), &["47 entries", "48 layers"]),
        ("attention.compress_ratios", (&[4i32; 48][..]).into(), &["layer 0", "no attention"]),
        ("attention.compress_ratios", (&uneven[..]).into(), &["differs", "4", "8"]),
        ("attention.compress_ratios", (&uneven.map(|r| 3 * r)[..]).into(), &["12", "power of two"]),
        ("ple.layers", (&[1i32, 2][..]).into(), &["2 entries", "one"]),
        ("ple.layers", (&[3i32][..]).into(), &["3", "recurrent"]),
        ("ple.layers", (&[48i32][..]).into(), &["48", "recurrent"]),
        ("ple.ngram_size", 9u32.into(), &["9", "8"]),
        ("ple.conv_kernel", 0u32.into(), &["0"]),
        ("ple.layer_multipliers", (&[1u64, 2][..]).into(), &["2 entries", "3"]),
    ];
    for (key, value, words) in wrong {
        let mut model = flash_next();
        model.set(&format!("qwen4exp.{key}"), value.clone());
        refused("wrong-4", &model, &[&[*key], *words].concat());
    }
}
