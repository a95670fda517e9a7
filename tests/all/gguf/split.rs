//! Models in several files.

use std::path::{Path, PathBuf};

use engine::gguf::TensorInfo;
use engine::gguf::write::Writer;
use engine::{Gguf, Result};

use crate::gguf::alignment::{copy_of, same_tensors};
use crate::gguf::{fixture, logits, refused, scratch};

/// Writes `model`, whose data are those of `original`, in parts and returns their paths.
fn parts(original: &Gguf, model: &Writer, prefix: &Path, per_part: usize) -> Vec<PathBuf> {
    let data = |tensor: &TensorInfo| original.data(original.tensor(&tensor.name).unwrap());
    model.write_split(prefix, per_part, |tensor, sink| sink.write_all(data(tensor))).unwrap()
}

/// A small model in parts of 20 tensors, in a directory of the test's own.
fn split_model(test: &str) -> (Gguf, Vec<PathBuf>) {
    let original = Gguf::open(fixture("tiny-qwen3.gguf")).unwrap();
    let paths = parts(&original, &copy_of(&original), &scratch(test).join("model"), 20);
    assert_eq!(paths.len(), 3);
    (original, paths)
}

#[test]
fn any_part_opens_the_whole_model() -> Result<()> {
    let (original, paths) = split_model("any-part");
    let expected = logits(&fixture("tiny-qwen3.gguf"))?;
    for path in &paths {
        let gguf = Gguf::open(path)?;
        same_tensors(&original, &gguf);
        assert!(gguf.files().eq(&paths));
        for (key, value) in original.metadata().iter() {
            assert_eq!(gguf.metadata().get(key), Some(value), "{key}");
        }
        let total: u64 = paths.iter().map(|p| p.metadata().unwrap().len()).sum();
        assert_eq!(gguf.file_len(), total);
        assert!(logits(path)? == expected, "logits from {}", path.display());
    }
    Ok(())
}

#[test]
fn a_part_opens_by_its_bare_name() -> Result<()> {
    let (_, paths) = split_model("relative");
    let here = std::env::current_dir().unwrap();
    let relative = pathdiff(&paths[1], &here);
    assert_eq!(Gguf::open(relative)?.tensors().len(), 47);
    Ok(())
}

/// `path` as seen from `base`; both absolute.
fn pathdiff(path: &Path, base: &Path) -> PathBuf {
    let shared = path.components().zip(base.components()).take_while(|(a, b)| a == b).count();
    let up = base.components().skip(shared).map(|_| "..");
    up.map(PathBuf::from)
        .chain(path.components().skip(shared).map(|c| c.as_os_str().into()))
        .collect()
}

#[test]
fn merged_files_that_keep_the_key_are_single() -> Result<()> {
    let original = Gguf::open(fixture("tiny-qwen3.gguf"))?;
    for count in [0u16, 1] {
        let path = scratch("merged").join("model.gguf");
        let mut model = copy_of(&original);
        model.set("split.count", count);
        let data = |tensor: &TensorInfo| original.data(original.tensor(&tensor.name).unwrap());
        model.write(&path, |tensor, sink| sink.write_all(data(tensor)))?;
        same_tensors(&original, &Gguf::open(&path)?);
    }
    Ok(())
}

#[test]
fn a_missing_part_is_named() {
    let (_, paths) = split_model("missing-part");
    std::fs::remove_file(&paths[1]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf"]);
    refused(&paths[2], &["model-00002-of-00003.gguf"]);
}

#[test]
fn a_truncated_part_is_named() {
    let (_, paths) = split_model("truncated-part");
    let bytes = std::fs::read(&paths[2]).unwrap();
    std::fs::write(&paths[2], &bytes[..bytes.len() - 4096]).unwrap();
    refused(&paths[0], &["model-00003-of-00003.gguf", "cut short"]);
}

#[test]
fn swapped_parts_are_named() {
    let (_, paths) = split_model("swapped");
    let spare = paths[0].with_extension("spare");
    std::fs::rename(&paths[1], &spare).unwrap();
    std::fs::rename(&paths[2], &paths[1]).unwrap();
    std::fs::rename(&spare, &paths[2]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf", "is part 3 of 3", "part 2 of 3"]);
    // Opened by a swapped part, the name contradicts the part's own metadata.
    refused(&paths[1], &["model-00002-of-00003.gguf", "part 3 of 3", "-00003-of-00003.gguf"]);
}

#[test]
fn a_part_of_another_model_is_named() {
    let (_, paths) = split_model("another-model");
    let other = Gguf::open(fixture("tiny-llama.gguf")).unwrap();
    let prefix = paths[0].with_file_name("other");
    let others = parts(&other, &copy_of(&other), &prefix, 15);
    assert_eq!(others.len(), 3);
    std::fs::copy(&others[1], &paths[1]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf", "39 tensors", "47 tensors"]);
}

#[test]
fn a_part_of_another_set_of_the_same_model_is_named() {
    let (original, paths) = split_model("another-set");
    let prefix = paths[0].with_file_name("other");
    let others = parts(&original, &copy_of(&original), &prefix, 30);
    assert_eq!(others.len(), 2);
    std::fs::copy(&others[1], &paths[1]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf", "part 2 of 2"]);
    let others = parts(&original, &copy_of(&original), &prefix, 17);
    assert_eq!(others.len(), 3);
    std::fs::copy(&others[1], &paths[1]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf", "twice"]);
}

#[test]
fn a_single_file_in_place_of_a_part_is_named() {
    let (_, paths) = split_model("single");
    std::fs::copy(fixture("tiny-llama.gguf"), &paths[1]).unwrap();
    refused(&paths[0], &["model-00002-of-00003.gguf", "single file", "part 2 of 3"]);
}

#[test]
fn a_wrong_total_is_refused() {
    let (_, paths) = split_model("total");
    for path in &paths {
        let mut bytes = std::fs::read(path).unwrap();
        let key = b"split.tensors.count";
        let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
        bytes[at] += 1;
        std::fs::write(path, &bytes).unwrap();
    }
    refused(&paths[0], &["split.tensors.count", "48", "47"]);
}

#[test]
fn a_renamed_part_is_refused() {
    let (_, paths) = split_model("renamed");
    let renamed = paths[0].with_file_name("renamed.gguf");
    std::fs::rename(&paths[0], &renamed).unwrap();
    refused(&renamed, &["renamed.gguf", "part 1 of 3", "-00001-of-00003.gguf"]);
}

#[test]
fn impossible_part_numbers_are_refused() {
    let original = Gguf::open(fixture("tiny-qwen3.gguf")).unwrap();
    let path = scratch("number").join("model.gguf");
    let data = |tensor: &TensorInfo| original.data(original.tensor(&tensor.name).unwrap());
    for (number, count) in [(3u32, 3u32), (0, 70_000)] {
        let mut model = copy_of(&original);
        model.set("split.no", number).set("split.count", count);
        model.write(&path, |tensor, sink| sink.write_all(data(tensor))).unwrap();
        refused(&path, &["part", &number.to_string(), &count.to_string()]);
    }
    let mut model = copy_of(&original);
    model.set("split.count", 2u16);
    model.write(&path, |tensor, sink| sink.write_all(data(tensor))).unwrap();
    refused(&path, &["split.no", "missing"]);
}
