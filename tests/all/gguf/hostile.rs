//! Whatever the bytes are: an error or a model, never a panic.

use std::path::Path;

use engine::gguf::write::Writer;

use engine::model::config::ModelConfig;
use engine::model::tensors::check_tensors;
use engine::quant::BlockType;
use engine::{Gguf, Result};
use proptest::prelude::*;

use crate::gguf::scratch;

/// Opens `bytes` and walks over all that a caller can reach.
fn walk(path: &Path, bytes: &[u8]) -> Result<()> {
    // Cutting a file short to write it anew makes some file systems wait for the disk.
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
    let gguf = Gguf::open(path)?;
    for (key, value) in gguf.metadata().iter() {
        let _ = format!("{key} {value}");
        let _ = gguf.metadata().optional::<u32>(key);
        let _ = gguf.metadata().optional::<Vec<u64>>(key);
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.data(tensor).len() as u64, tensor.size);
    }
    let config = ModelConfig::from_gguf(&gguf)?;
    // Of the tensors most are missing, so this is an error, or a list.
    let _ = check_tensors(&config, &gguf);
    Ok(())
}

/// A small valid file with values of many types.
fn valid(path: &Path) -> Vec<u8> {
    let mut model = Writer::default();
    model
        .set("general.architecture", "llama")
        .set("general.alignment", 64u32)
        .set("llama.block_count", 1u32)
        .set("llama.context_length", 64u32)
        .set("llama.embedding_length", 32u32)
        .set("llama.attention.head_count", 2u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("llama.feed_forward_length", 32u32)
        .set("flags", &[true, false][..])
        .set("tokenizer.ggml.tokens", ["a", "b"].into_iter().collect::<engine::gguf::Strings>());
    model.tensor("token_embd.weight", BlockType::Q8_0, &[32, 2]);
    model.tensor("output_norm.weight", BlockType::F32, &[32]);
    model.write(path, |tensor, sink| sink.write_all(&vec![3; tensor.size as usize])).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn the_valid_file_is_valid() {
    let path = scratch("valid").join("model.gguf");
    let bytes = valid(&path);
    assert!(walk(&path, &bytes).is_ok());
}

#[test]
fn truncations_at_every_place() {
    let path = scratch("cut").join("model.gguf");
    let bytes = valid(&path);
    let padding = 64;
    for len in 0..bytes.len() - padding {
        assert!(walk(&path, &bytes[..len]).is_err(), "cut to {len} of {}", bytes.len());
    }
}

#[test]
fn every_bit_of_the_header_flipped() {
    let path = scratch("flip").join("model.gguf");
    let bytes = valid(&path);
    for bit in 0..(bytes.len() - 192) * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = walk(&path, &flipped);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let path = scratch("random").join("model.gguf");
        prop_assert!(walk(&path, &bytes).is_err());
    }

    #[test]
    fn random_bytes_after_a_good_start(
        tensors in 0u64..4, pairs in 0u64..4, bytes in prop::collection::vec(0u8..16, 0..512)
    ) {
        let path = scratch("started").join("model.gguf");
        let counts = [tensors.to_le_bytes(), pairs.to_le_bytes()].concat();
        let _ = walk(&path, &[b"GGUF\x03\0\0\0", &counts[..], &bytes].concat());
    }

    #[test]
    fn fields_overwritten(at in 0usize..600, value in prop_oneof![
        Just(0u64), Just(u64::MAX), Just(1 << 31), Just(1 << 32), Just(1 << 40), Just(1 << 63),
        any::<u64>(),
    ]) {
        let path = scratch("overwritten").join("model.gguf");
        let mut bytes = valid(&path);
        let at = at.min(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let _ = walk(&path, &bytes);
    }
}
