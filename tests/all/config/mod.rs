//! Model configurations: what files give, and what is refused.

mod qwen4exp;

use std::path::PathBuf;

use engine::gguf::write::Writer;
use engine::gguf::{Strings, TensorInfo, Value};
use engine::model::arch::Arch;
use engine::model::config::{Ffn, Gdn, LayerKind, ModelConfig};
use engine::model::rope::{Rope, RopeKind, RopeScaling, Yarn};
use engine::model::tensors::{check_tensors, expected_tensors};
use engine::quant::BlockType;
use engine::{Gguf, Result};

use LayerKind::{Attention, Recurrent};
use proptest::prelude::*;

fn fixture(name: &str) -> Gguf {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    Gguf::open(models.join(name).with_extension("gguf")).unwrap()
}

/// Writes `model` with tensors that hold only `value`, as F32, and opens it.
fn open_filled(test: &str, model: &Writer, value: f32) -> Gguf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("config");
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(format!("{test}.gguf"));
    let fill = |tensor: &TensorInfo| value.to_le_bytes().repeat(tensor.size as usize / 4);
    model.write(&path, |tensor, sink| sink.write_all(&fill(tensor))).unwrap();
    Gguf::open(path).unwrap()
}

/// Writes `model` and opens it.
fn open(test: &str, model: &Writer) -> Gguf {
    open_filled(test, model, 0.0)
}

/// Metadata of the real Qwen3.6-35B-A3B, without tensors.
fn qwen35moe() -> Writer {
    let mut model = Writer::default();
    model
        .set("general.architecture", "qwen35moe")
        .set("qwen35moe.block_count", 40u32)
        .set("qwen35moe.context_length", 262_144u32)
        .set("qwen35moe.embedding_length", 2048u32)
        .set("qwen35moe.attention.head_count", 16u32)
        .set("qwen35moe.attention.head_count_kv", 2u32)
        .set("qwen35moe.attention.key_length", 256u32)
        .set("qwen35moe.attention.value_length", 256u32)
        .set("qwen35moe.attention.layer_norm_rms_epsilon", 1e-6f32)
        .set("qwen35moe.vocab_size", 248_320u32)
        .set("qwen35moe.rope.dimension_count", 64u32)
        .set("qwen35moe.rope.dimension_sections", &[11i32, 11, 10, 0][..])
        .set("qwen35moe.rope.freq_base", 1e7f32)
        .set("qwen35moe.expert_count", 256u32)
        .set("qwen35moe.expert_used_count", 8u32)
        .set("qwen35moe.expert_feed_forward_length", 512u32)
        .set("qwen35moe.expert_shared_feed_forward_length", 512u32)
        .set("qwen35moe.ssm.conv_kernel", 4u32)
        .set("qwen35moe.ssm.state_size", 128u32)
        .set("qwen35moe.ssm.group_count", 16u32)
        .set("qwen35moe.ssm.time_step_rank", 32u32)
        .set("qwen35moe.ssm.inner_size", 4096u32);
    model
}

/// Metadata of a small Llama, without tensors.
fn llama() -> Writer {
    let mut model = Writer::default();
    model
        .set("general.architecture", "llama")
        .set("llama.block_count", 2u32)
        .set("llama.context_length", 4096u32)
        .set("llama.embedding_length", 64u32)
        .set("llama.feed_forward_length", 96u32)
        .set("llama.attention.head_count", 4u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("llama.vocab_size", 10u32);
    model
}

#[test]
fn the_hybrid_fixture() -> Result<()> {
    let config = ModelConfig::from_gguf(&fixture("tiny-qwen35moe-mtp"))?;
    let expected = ModelConfig {
        arch: Arch::Qwen35Moe,
        n_layer: 4,
        n_mtp: 1,
        n_embd: 128,
        n_vocab: 640,
        n_head: 4,
        n_kv: 2,
        head_dim: 64,
        eps: 1e-6,
        attn_scale: 0.125,
        context_length: 8192,
        rope: Rope { kind: RopeKind::Neox, n_rot: 16, base: 1e7, scaling: RopeScaling::None },
        gated_attention: true,
        ffn: Ffn::Moe {
            n_expert: 8,
            n_used: 3,
            n_ff_exp: 32,
            n_ff_shared: Some(32),
            weights_scale: 1.0,
        },
        gdn: Some(Gdn { n_k_heads: 2, n_v_heads: 4, state_size: 32, conv_kernel: 4 }),
        qwen4exp: None,
        layers: vec![Recurrent, Recurrent, Recurrent, Attention],
    };
    assert_eq!(config, expected);
    Ok(())
}

#[test]
fn dense_fixtures() -> Result<()> {
    let llama = ModelConfig::from_gguf(&fixture("tiny-llama"))?;
    assert_eq!((llama.rope.kind, llama.n_vocab, llama.head_dim), (RopeKind::Norm, 640, 16));
    assert_eq!(llama.ffn, Ffn::Dense { n_ff: 256 });
    let qwen3 = ModelConfig::from_gguf(&fixture("tiny-qwen3"))?;
    assert_eq!((qwen3.rope.kind, qwen3.rope.n_rot), (RopeKind::Neox, 64));
    assert!(!qwen3.gated_attention && qwen3.gdn.is_none());
    assert_eq!(qwen3.layers, [Attention; 4]);
    Ok(())
}

#[test]
fn every_fixture_has_exactly_the_expected_tensors() -> Result<()> {
    for name in [
        "tiny-llama",
        "tiny-qwen3",
        "tiny-qwen35",
        "tiny-qwen35moe",
        "tiny-qwen35moe-mtp",
        "mid-qwen35moe-Q8_0",
        "mid-qwen35moe-Q4_K_M",
    ] {
        let gguf = fixture(name);
        let config = ModelConfig::from_gguf(&gguf)?;
        assert_eq!(check_tensors(&config, &gguf)?, Vec::<String>::new(), "{name}");
        let required = expected_tensors(&config, |_| false).iter().filter(|t| t.required).count();
        assert!(required <= gguf.tensors().len(), "{name}");
    }
    Ok(())
}

#[test]
fn real_models_have_the_known_number_of_tensors() -> Result<()> {
    let config = ModelConfig::from_gguf(&open("count", &qwen35moe()))?;
    assert_eq!(expected_tensors(&config, |_| false).len(), 733);
    let merged = |name: &str| name.ends_with("ffn_gate_up_exps.weight");
    assert_eq!(expected_tensors(&config, merged).len(), 693);
    let mut with_mtp = qwen35moe();
    with_mtp.set("qwen35moe.block_count", 41u32).set("qwen35moe.nextn_predict_layers", 1u32);
    let config = ModelConfig::from_gguf(&open("count-mtp", &with_mtp))?;
    // Real files leave out the draft block's own embedding and output.
    assert_eq!(expected_tensors(&config, |_| false).len(), 753 + 2);
    Ok(())
}

#[test]
fn recurrent_layers_by_interval_or_by_list() -> Result<()> {
    let config = ModelConfig::from_gguf(&open("interval-4", &qwen35moe()))?;
    assert_eq!(config.layers[..8], [[Recurrent, Recurrent, Recurrent, Attention]; 2].concat());
    let mut model = qwen35moe();
    model.set("qwen35moe.full_attention_interval", 2u32);
    let config = ModelConfig::from_gguf(&open("interval-2", &model))?;
    assert_eq!(config.layers[..4], [Recurrent, Attention, Recurrent, Attention]);
    let list: Vec<bool> = (0..40).map(|i| i != 5).collect();
    model.set("qwen35moe.attention.recurrent_layers", &list[..]);
    let config = ModelConfig::from_gguf(&open("list", &model))?;
    assert_eq!(config.layers.iter().position(|&l| l == Attention), Some(5));
    assert_eq!(config.layers.iter().filter(|&&l| l == Attention).count(), 1);
    Ok(())
}

#[test]
fn lists_of_one_value_a_block() -> Result<()> {
    let mut model = qwen35moe();
    let kv: Vec<u32> = (1..=40).map(|i| if i % 4 == 0 { 2 } else { 0 }).collect();
    model.set("qwen35moe.attention.head_count_kv", &kv[..]);
    model.set("qwen35moe.expert_feed_forward_length", &[512u32; 40][..]);
    assert_eq!(ModelConfig::from_gguf(&open("lists", &model))?.n_kv, 2);
    Ok(())
}

#[test]
fn defaults() -> Result<()> {
    let config = ModelConfig::from_gguf(&open("defaults", &llama()))?;
    assert_eq!((config.n_kv, config.head_dim, config.rope.n_rot), (4, 16, 16));
    assert_eq!((config.rope.base, config.attn_scale), (10_000.0, 0.25));
    let mut model = llama();
    model.set("llama.attention.scale", 0.5f32);
    assert_eq!(ModelConfig::from_gguf(&open("scale", &model))?.attn_scale, 0.5);
    Ok(())
}

#[test]
fn the_vocabulary_is_the_rows_of_the_embedding() -> Result<()> {
    let mut model = llama();
    let tokens: Strings = ["a", "b", "c"].into_iter().collect();
    model.unset("llama.vocab_size").set("tokenizer.ggml.tokens", tokens);
    assert_eq!(ModelConfig::from_gguf(&open("tokens", &model))?.n_vocab, 3);
    Ok(())
}

#[test]
fn mixtral_has_experts_as_wide_as_the_key_says() -> Result<()> {
    let mut model = llama();
    model.set("llama.expert_count", 8u32).set("llama.expert_used_count", 2u32);
    model.set("llama.expert_weights_scale", 2.5f32);
    let config = ModelConfig::from_gguf(&open("mixtral", &model))?;
    let experts =
        Ffn::Moe { n_expert: 8, n_used: 2, n_ff_exp: 96, n_ff_shared: None, weights_scale: 2.5 };
    assert_eq!(config.ffn, experts);
    Ok(())
}

#[test]
fn rope_scaling() -> Result<()> {
    let mut model = llama();
    model.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 4f32);
    let config = ModelConfig::from_gguf(&open("linear", &model))?;
    assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 4.0 });
    model.set("llama.rope.scaling.type", "yarn");
    let config = ModelConfig::from_gguf(&open("yarn", &model))?;
    assert_eq!(config.rope.scaling, RopeScaling::Yarn(Yarn::new(4.0, 4096)));
    model
        .set("llama.rope.scaling.original_context_length", 1024u32)
        .set("llama.rope.scaling.attn_factor", 0.5f32)
        .set("llama.rope.scaling.yarn_attn_factor", 0.5f32)
        .set("llama.rope.scaling.yarn_ext_factor", 0.75f32)
        .set("llama.rope.scaling.yarn_beta_fast", 16f32)
        .set("llama.rope.scaling.yarn_beta_slow", 2f32);
    let config = ModelConfig::from_gguf(&open("yarn-tuned", &model))?;
    let tuned = Yarn {
        factor: 4.0,
        original_context: 1024,
        ext_factor: 0.75,
        attn_factor: 0.25,
        beta_fast: 16.0,
        beta_slow: 2.0,
    };
    assert_eq!(config.rope.scaling, RopeScaling::Yarn(tuned));
    Ok(())
}

/// Asserts that `model` is refused with an error that holds `words`.
#[track_caller]
fn refused(test: &str, model: &Writer, words: &[&str]) {
    let error = match ModelConfig::from_gguf(&open(test, model)) {
        Ok(config) => panic!("{words:?}: {config:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    }
}

#[test]
fn required_keys_are_named_when_missing() {
    for key in [
        "general.architecture",
        "qwen35moe.block_count",
        "qwen35moe.context_length",
        "qwen35moe.embedding_length",
        "qwen35moe.attention.head_count",
        "qwen35moe.attention.layer_norm_rms_epsilon",
        "qwen35moe.vocab_size",
        "qwen35moe.rope.dimension_sections",
        "qwen35moe.expert_count",
        "qwen35moe.expert_used_count",
        "qwen35moe.ssm.conv_kernel",
        "qwen35moe.ssm.state_size",
        "qwen35moe.ssm.group_count",
        "qwen35moe.ssm.time_step_rank",
        "qwen35moe.ssm.inner_size",
    ] {
        refused("missing", qwen35moe().unset(key), &[&format!("`{key}`"), "missing"]);
    }
    let mut model = qwen35moe();
    model.unset("qwen35moe.expert_feed_forward_length");
    refused("missing", &model, &["`qwen35moe.feed_forward_length`", "missing"]);
    refused("missing", llama().unset("llama.feed_forward_length"), &["feed_forward_length"]);
}

#[test]
fn wrong_values_are_named() {
    let wrong: &[(&str, Value, &[&str])] = &[
        ("block_count", 0u32.into(), &["0", "1 to 1024"]),
        ("block_count", 1025u32.into(), &["1025"]),
        ("block_count", (-1i32).into(), &["i32 -1", "unsigned"]),
        ("block_count", (1u64 << 40).into(), &["u64"]),
        ("block_count", "40".into(), &["string"]),
        ("nextn_predict_layers", 40u32.into(), &["40"]),
        ("embedding_length", 0u32.into(), &["0"]),
        ("attention.head_count", 0u32.into(), &["0"]),
        ("attention.head_count", (&[16u32; 39][..]).into(), &["39 entries", "40 blocks"]),
        ("attention.head_count_kv", 3u32.into(), &["3", "16"]),
        ("attention.key_length", 513u32.into(), &["513", "512"]),
        ("attention.value_length", 128u32.into(), &["128", "256"]),
        ("attention.layer_norm_rms_epsilon", 0f32.into(), &["0"]),
        ("attention.layer_norm_rms_epsilon", f32::NAN.into(), &["NaN"]),
        ("attention.layer_norm_rms_epsilon", 1u32.into(), &["u32 1", "float"]),
        ("attention.scale", f32::INFINITY.into(), &["inf"]),
        ("attention.recurrent_layers", (&[true; 39][..]).into(), &["39 entries", "40 blocks"]),
        ("full_attention_interval", 0u32.into(), &["0"]),
        ("rope.dimension_count", 63u32.into(), &["63", "odd"]),
        ("rope.dimension_count", 258u32.into(), &["258", "256"]),
        ("rope.freq_base", 1f32.into(), &["1"]),
        ("rope.scaling.type", "longrope".into(), &["longrope", "yarn"]),
        ("expert_count", 0u32.into(), &["0"]),
        ("expert_count", 65_537u32.into(), &["65537"]),
        ("expert_used_count", 257u32.into(), &["257", "256"]),
        ("expert_used_count", 0u32.into(), &["0"]),
        ("ssm.time_step_rank", 24u32.into(), &["24", "16"]),
        ("ssm.inner_size", 4095u32.into(), &["4095", "4096"]),
        ("ssm.state_size", 0u32.into(), &["0"]),
        ("ssm.conv_kernel", 0u32.into(), &["0"]),
    ];
    for (key, value, words) in wrong {
        let key = format!("qwen35moe.{key}");
        let mut model = qwen35moe();
        model.set(&key, value.clone());
        refused("wrong", &model, &[&[key.as_str()], *words].concat());
    }
    let mut model = qwen35moe();
    let uneven: Vec<u32> = (0..40).map(|i| if i < 8 { 2 } else { 4 }).collect();
    model.set("qwen35moe.attention.head_count_kv", &uneven[..]);
    refused("wrong", &model, &["head_count_kv", "differs", "2", "4"]);
}

/// The integer keys of a hybrid model with experts.
const COUNTS: [&str; 18] = [
    "block_count",
    "nextn_predict_layers",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "vocab_size",
    "rope.dimension_count",
    "full_attention_interval",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_counts_make_a_panic(changes in prop::collection::vec(
        (prop::sample::select(&COUNTS[..]), prop_oneof![0u32..=4, any::<u32>(), (0u32..32).prop_map(|b| 1 << b)]),
        0..6,
    )) {
        let mut model = qwen35moe();
        for (key, value) in changes {
            model.set(&format!("qwen35moe.{key}"), value);
        }
        if let Ok(config) = ModelConfig::from_gguf(&open("counts", &model)) {
            prop_assert!(!expected_tensors(&config, |_| false).is_empty());
            config.rope.frequencies(None);
        }
    }
}

#[test]
fn wrong_scaling_is_named() {
    let mut model = llama();
    model.set("llama.rope.scaling.type", "yarn");
    refused("scaling", &model, &["rope.scaling.factor", "missing"]);
    model.set("llama.rope.scaling.factor", 0f32);
    refused("scaling", &model, &["rope.scaling.factor", "0"]);
    model.set("llama.rope.scaling.factor", 2f32);
    model.set("llama.rope.scaling.yarn_log_multiplier", 0.1f32);
    refused("scaling", &model, &["yarn_log_multiplier", "0.1"]);
}

#[test]
fn more_tokens_than_rows_are_refused() {
    let tokens: Strings = (0..11).map(|i| i.to_string()).collect();
    let mut model = llama();
    model.set("tokenizer.ggml.tokens", tokens);
    refused("tokens-many", &model, &["tokenizer.ggml.tokens", "11", "10"]);
}

#[test]
fn other_architectures_are_refused_by_name() {
    let mut model = Writer::default();
    model.set("general.architecture", "qwen3next");
    refused("arch", &model, &["qwen3next", "not supported yet"]);
    let mut model = Writer::default();
    model.set("general.architecture", "gpt2");
    refused("arch", &model, &["gpt2", "supported are llama"]);
}

/// Writes `model` with all required tensors, after `change` has had its way with the shape of
/// each, every element `value`; then checks it.
fn check(
    test: &str,
    mut model: Writer,
    value: f32,
    change: impl Fn(&str, &mut Vec<u64>) -> bool,
) -> Result<Vec<String>> {
    let config = ModelConfig::from_gguf(&open(test, &model))?;
    for spec in expected_tensors(&config, |_| false).into_iter().filter(|t| t.required) {
        let mut shape = spec.dims.to_vec();
        if change(&spec.name, &mut shape) {
            model.tensor(&spec.name, BlockType::F32, &shape);
        }
    }
    let gguf = open_filled(test, &model, value);
    check_tensors(&ModelConfig::from_gguf(&gguf)?, &gguf)
}

#[test]
fn missing_tensors_and_wrong_shapes_are_listed_together() {
    let error = check("faults", llama(), 0.0, |name, shape| {
        if name == "blk.1.attn_k.weight" {
            shape[1] = 32;
        }
        !matches!(name, "blk.0.ffn_norm.weight" | "output_norm.weight")
    });
    let error = error.unwrap_err().to_string();
    for words in [
        "`blk.0.ffn_norm.weight` is missing",
        "`output_norm.weight` is missing",
        "`blk.1.attn_k.weight` has shape [64, 32, 1, 1], not [64, 64, 1, 1]",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn unused_tensors_are_returned() -> Result<()> {
    let mut model = llama();
    model.tensor("blk.0.attn_extra.weight", BlockType::F32, &[4]);
    assert_eq!(check("extra", model, 0.0, |_, _| true)?, ["blk.0.attn_extra.weight"]);
    Ok(())
}

#[test]
fn biases_and_rope_factors_of_llama_are_known() -> Result<()> {
    let mut model = llama();
    model.tensor("rope_freqs.weight", BlockType::F32, &[8]);
    model.tensor("blk.0.attn_q.bias", BlockType::F32, &[64]);
    model.tensor("blk.1.ffn_down.bias", BlockType::F32, &[64]);
    assert!(check("biases", model, 0.0, |_, _| true)?.is_empty());
    Ok(())
}

#[test]
fn a_merged_expert_tensor_replaces_two() -> Result<()> {
    let mut model = llama();
    model.set("llama.expert_count", 4u32).set("llama.expert_used_count", 2u32);
    for block in 0..2 {
        let name = format!("blk.{block}.ffn_gate_up_exps.weight");
        model.tensor(&name, BlockType::F32, &[64, 192, 4]);
    }
    let separate = |name: &str| name.contains("gate_exps") || name.contains("up_exps");
    assert!(check("merged", model, 0.0, |name, _| !separate(name))?.is_empty());
    Ok(())
}

/// `model` with an NVFP4 matrix beside its tensors, and `scales` factors of it.
fn scaled(mut model: Writer, matrices: u64, scales: u64) -> Writer {
    model.tensor("blk.7.ffn_up_exps.weight", BlockType::Nvfp4, &[64, 2, matrices]);
    model.tensor("blk.7.ffn_up_exps.scale", BlockType::F32, &[scales]);
    model.tensor("blk.7.ffn_up_exps.input_scale", BlockType::F32, &[scales]);
    model
}

#[test]
fn nvfp4_matrices_may_have_one_factor_or_one_an_expert() -> Result<()> {
    for (name, scales) in [("factor", 1), ("factors", 4)] {
        let unused = check(name, scaled(llama(), 4, scales), 2.0, |_, _| true)?;
        assert_eq!(unused, ["blk.7.ffn_up_exps.weight"]);
    }
    let error = check("few-factors", scaled(llama(), 4, 3), 2.0, |_, _| true).unwrap_err();
    assert!(error.to_string().contains("blk.7.ffn_up_exps.scale` has 3 values"), "{error}");
    Ok(())
}

#[test]
fn scales_of_other_tensors_are_refused_unless_1() -> Result<()> {
    let mut model = llama();
    model.tensor("blk.0.attn_q.scale", BlockType::F32, &[1]);
    assert!(check("scale-1", model.clone(), 1.0, |_, _| true)?.is_empty());
    let error = check("scale-2", model, 2.0, |_, _| true).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_q.scale"), "{error}");
    Ok(())
}
