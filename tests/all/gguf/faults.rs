//! One test for each fault of spec/gguf.md 6 and known-faults.md "GGUF loading".

use crate::gguf::raw::{ARRAY, BOOL, Raw, STRING, U32, U64, array, pair, string};
use crate::gguf::{fixture, refused, scratch};

#[test]
fn a_missing_file_is_named() {
    refused(scratch("missing").join("nowhere.gguf"), &["nowhere.gguf"]);
}

#[test]
fn a_directory_is_refused() {
    refused(scratch("directory"), &["directory", "not a regular file"]);
}

#[test]
fn short_files_are_refused() {
    for len in [0, 1, 23] {
        let path = scratch("short").join("model.gguf");
        std::fs::write(&path, vec![b'G'; len]).unwrap();
        refused(&path, &["model.gguf", &format!("is {len} bytes long")]);
    }
}

#[test]
fn another_magic_is_refused() {
    let file = Raw { magic: *b"PK\x03\x04", ..Raw::default() };
    refused(file.write("magic"), &["no GGUF file", "PK\\x03\\x04"]);
}

#[test]
fn other_versions_are_refused() {
    for version in [0, 1, 4] {
        let file = Raw { version, ..Raw::default() };
        refused(file.write("version"), &[&format!("version {version}")]);
    }
    let file = Raw { version: 3 << 24, ..Raw::default() };
    refused(file.write("version"), &["big-endian"]);
}

#[test]
fn impossible_counts_are_refused() {
    for n in [1_000_001, 1 << 63, u64::MAX] {
        let file = Raw { n_tensors: Some(n), ..Raw::default() };
        refused(file.write("counts"), &[&format!("claims {n} tensors")]);
        let file = Raw { n_pairs: Some(n), ..Raw::default() };
        refused(file.write("counts"), &[&format!("claims {n} metadata pairs")]);
    }
    // Within the limit, but more than the file has bytes for.
    let file = Raw { n_tensors: Some(1000), ..Raw::default() };
    refused(file.write("counts"), &["claims 1000 tensors"]);
    let file = Raw { n_pairs: Some(1000), ..Raw::default() };
    refused(file.write("counts"), &["claims 1000 metadata pairs"]);
}

#[test]
fn impossible_string_lengths_are_refused() {
    for len in [65 << 20, 1 << 40, u64::MAX] {
        let file = Raw::with_pair(b"some.key", STRING, &len.to_le_bytes());
        refused(file.write("string"), &["some.key", &format!("{len} bytes long")]);
    }
    let file = Raw::with_pair(b"some.key", STRING, &1000u64.to_le_bytes());
    refused(file.write("string"), &["ends inside", "some.key", "1000 bytes"]);
}

#[test]
fn bad_keys_are_refused() {
    let twice = Raw::with_pair(b"general.architecture", U32, &[0; 4]);
    refused(twice.write("keys"), &["general.architecture", "twice"]);
    refused(Raw::with_pair(b"", U32, &[0; 4]).write("keys"), &["metadata pair 1", "0 bytes"]);
    refused(Raw::with_pair(b"a\xff", U32, &[0; 4]).write("keys"), &["pair 1", "not UTF-8"]);
    let long = Raw::with_pair(&vec![b'k'; 65_536], U32, &[0; 4]);
    refused(long.write("keys"), &["metadata pair 1", "65536 bytes"]);
}

#[test]
fn unknown_value_types_are_refused() {
    let file = Raw::with_pair(b"some.key", 13, &[0; 8]);
    refused(file.write("types"), &["some.key", "unknown value type 13"]);
    let file = Raw::with_pair(b"some.key", ARRAY, &array(13, 1));
    refused(file.write("types"), &["some.key", "unknown element type 13"]);
    let nested = [array(ARRAY, 1), array(U32, 1), vec![0; 4]].concat();
    let file = Raw::with_pair(b"some.key", ARRAY, &nested);
    refused(file.write("types"), &["some.key", "array of arrays"]);
}

#[test]
fn impossible_array_lengths_are_refused() {
    for count in [1000, 1 << 40, 1 << 62, u64::MAX] {
        for ty in [STRING, U32, U64] {
            let file = Raw::with_pair(b"some.key", ARRAY, &array(ty, count));
            refused(file.write("arrays"), &["some.key", &format!("claims {count} elements")]);
        }
    }
}

#[test]
fn bools_are_0_or_1() {
    refused(Raw::with_pair(b"some.key", BOOL, &[2]).write("bools"), &["some.key", "2", "no bool"]);
    let values = [array(BOOL, 3), vec![0, 1, 255]].concat();
    let file = Raw::with_pair(b"some.key", ARRAY, &values);
    refused(file.write("bools"), &["some.key", "255 is no bool"]);
}

#[test]
fn bad_alignments_are_refused() {
    for value in [0u32, 1, 4, 24, 33, 1 << 21, 1 << 31, u32::MAX] {
        let file = Raw::with_pair(b"general.alignment", U32, &value.to_le_bytes());
        refused(file.write("alignments"), &["general.alignment", &format!("u32 {value}")]);
    }
    let file = Raw::with_pair(b"general.alignment", U64, &32u64.to_le_bytes());
    refused(file.write("alignments"), &["general.alignment", "u64 32"]);
    let file = Raw::with_pair(b"general.alignment", STRING, &string(b"32"));
    refused(file.write("alignments"), &["general.alignment", "string"]);
}

#[test]
fn bad_tensor_names_are_refused() {
    refused(Raw::with_tensor(|t| t.name = vec![]).write("names"), &["tensor 1", "0 bytes"]);
    let long = Raw::with_tensor(|t| t.name = vec![b'x'; 64]);
    refused(long.write("names"), &["tensor 1", "64 bytes"]);
    let bytes = Raw::with_tensor(|t| t.name = vec![0xff]);
    refused(bytes.write("names"), &["tensor 1", "not UTF-8"]);
    let twice = Raw::with_tensor(|t| t.name = b"first".to_vec());
    refused(twice.write("names"), &["`first`", "twice"]);
}

#[test]
fn bad_dimension_counts_are_refused() {
    for n in [0, 5, 1000, u32::MAX] {
        let file = Raw::with_tensor(|t| t.n_dims = Some(n));
        refused(file.write("n_dims"), &["`second`", &format!("{n} dimensions")]);
    }
}

#[test]
fn bad_dimensions_are_refused() {
    for dim in [0, (1 << 40) + 1, (1 << 42) + 1, u64::MAX] {
        let file = Raw::with_tensor(|t| t.dims = vec![8, dim]);
        refused(file.write("dims"), &["`second`", &format!("dimension of {dim}")]);
    }
    let file = Raw::with_tensor(|t| t.dims = vec![1 << 40, 1 << 23]);
    refused(file.write("dims"), &["`second`", "elements"]);
    let file = Raw::with_tensor(|t| t.dims = vec![1 << 40; 4]);
    refused(file.write("dims"), &["`second`", "elements"]);
    let file = Raw::with_tensor(|t| (t.ty, t.dims) = (27, vec![1 << 40, (1 << 23) - 1]));
    refused(file.write("dims"), &["`second`", "bytes"]);
}

#[test]
fn unknown_and_removed_types_are_refused() {
    for id in [4, 5, 31, 36, 43, u32::MAX] {
        let file = Raw::with_tensor(|t| t.ty = id);
        refused(file.write("tensor-types"), &["`second`", &format!("type id {id}")]);
    }
}

#[test]
fn rows_of_part_blocks_are_refused() {
    let file = Raw::with_tensor(|t| (t.ty, t.dims) = (8, vec![48, 2]));
    refused(file.write("blocks"), &["`second`", "48", "32", "Q8_0"]);
}

#[test]
fn bad_offsets_are_refused() {
    let file = Raw::with_tensor(|t| t.offset = 40);
    refused(file.write("offsets"), &["`second`", "40", "alignment 32"]);
    for offset in [64, 1 << 40, u64::MAX - 31, u64::MAX - 127] {
        let file = Raw::with_tensor(|t| t.offset = offset);
        let len = file.bytes().len();
        let words = ["`second`", &format!("offset {offset}"), &format!("{len} bytes")];
        refused(file.write("offsets"), &words);
    }
}

#[test]
fn overlapping_tensors_are_refused() {
    let file = Raw::with_tensor(|t| t.offset = 0);
    refused(file.write("overlap"), &["`first`", "`second`", "overlap"]);
    let file = Raw::with_tensor(|t| (t.offset, t.dims) = (0, vec![16]));
    refused(file.write("overlap"), &["`first`", "`second`", "overlap"]);
}

#[test]
fn a_file_short_by_one_byte_is_refused() {
    let path = scratch("truncated").join("model.gguf");
    let mut bytes = Raw::default().bytes();
    let (whole, _) = (bytes.len(), bytes.pop());
    std::fs::write(&path, &bytes).unwrap();
    let lengths = [format!("{} bytes long", whole - 1), format!("describes {whole} bytes")];
    refused(&path, &["`second`", &lengths[0], &lengths[1]]);
}

#[test]
fn a_real_model_short_by_one_byte_is_refused() {
    let bytes = std::fs::read(fixture("tiny-llama.gguf")).unwrap();
    let path = scratch("truncated-real").join("model.gguf");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    refused(&path, &["model.gguf", "cut short"]);
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    let mut file = Raw::with_pair(b"count", U32, &7u32.to_le_bytes());
    file.pairs.push(pair(b"negative", 5, &(-3i32).to_le_bytes()));
    file.pairs.push(pair(b"text", STRING, &string(b"abc\xff")));
    let gguf = engine::Gguf::open(file.write("keys-read")).unwrap();
    let metadata = gguf.metadata();
    let fails = |error: engine::Error, words: &[&str]| {
        let error = error.to_string();
        for word in [&["model.gguf"], words].concat() {
            assert!(error.contains(word), "`{error}` does not say `{word}`");
        }
    };
    fails(metadata.require::<u32>("absent").unwrap_err(), &["`absent` is missing", "integer"]);
    fails(metadata.require::<&str>("count").unwrap_err(), &["`count`", "u32 7", "string"]);
    fails(metadata.require::<f32>("count").unwrap_err(), &["`count`", "u32 7", "float"]);
    fails(metadata.require::<u32>("negative").unwrap_err(), &["`negative`", "i32 -3", "unsigned"]);
    fails(metadata.require::<Vec<u32>>("count").unwrap_err(), &["`count`", "array"]);
    fails(metadata.optional::<bool>("count").unwrap_err(), &["`count`", "bool"]);
    fails(metadata.require::<&str>("text").unwrap_err(), &["`text`", "UTF-8"]);
    assert_eq!(metadata.optional::<u32>("absent").unwrap(), None);
}
