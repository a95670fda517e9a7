//! What a valid file gives.

use engine::gguf::write::Writer;
use engine::gguf::{OneOrMany, Strings, Value};
use engine::quant::BlockType;
use engine::{Gguf, Result};

use crate::gguf::raw::Raw;
use crate::gguf::{fixture, scratch};

#[test]
fn a_written_file_reads_back() -> Result<()> {
    let path = scratch("round-trip").join("model.gguf");
    let tokens: Strings = [&b"plain"[..], b"", b"\xff\xfe"].into_iter().collect();
    let mut model = Writer::default();
    model
        .set("u8", 200u8)
        .set("i8", -100i8)
        .set("u16", 60_000u16)
        .set("i16", -30_000i16)
        .set("u32", 4_000_000_000u32)
        .set("i32", -2_000_000_000i32)
        .set("f32", 0.5f32)
        .set("bool", true)
        .set("string", "grüße")
        .set("u64", u64::MAX)
        .set("i64", i64::MIN)
        .set("f64", 0.25f64)
        .set("u32s", &[1u32, 2, 3][..])
        .set("u64s", &[u64::MAX, 1 << 63][..])
        .set("i32s", &[-1i32, 1][..])
        .set("f32s", &[0.5f32, -0.5][..])
        .set("bools", &[true, false][..])
        .set("strings", tokens.clone());
    model.tensor("a", BlockType::Q8_0, &[64, 3]).tensor("b", BlockType::F32, &[5]);
    model.write(&path, |tensor, sink| {
        sink.write_all(&if tensor.name == "a" { vec![1; 34 * 6] } else { vec![2; 20] })
    })?;

    let gguf = Gguf::open(&path)?;
    let m = gguf.metadata();
    for (key, value) in [("u8", 200), ("u16", 60_000), ("u32", 4_000_000_000)] {
        assert_eq!(m.require::<u32>(key)?, value, "{key}");
    }
    for (key, value) in [("i8", -100), ("i16", -30_000), ("i32", -2_000_000_000)] {
        assert_eq!(m.require::<i32>(key)?, value, "{key}");
    }
    assert_eq!(m.require::<u64>("u64")?, u64::MAX);
    assert_eq!(m.get("i64"), Some(&Value::I64(i64::MIN)));
    assert_eq!(m.require::<f32>("f32")?, 0.5);
    assert_eq!(m.require::<f32>("f64")?, 0.25);
    assert!(m.require::<bool>("bool")?);
    assert_eq!(m.require::<&str>("string")?, "grüße");
    assert_eq!(m.require::<Vec<u32>>("u32s")?, [1, 2, 3]);
    assert_eq!(m.require::<Vec<u64>>("u64s")?, [u64::MAX, 1 << 63]);
    assert_eq!(m.require::<Vec<i32>>("i32s")?, [-1, 1]);
    assert_eq!(m.require::<Vec<f32>>("f32s")?, [0.5, -0.5]);
    assert_eq!(m.require::<Vec<bool>>("bools")?, [true, false]);
    assert_eq!(m.require::<OneOrMany<u32>>("u32")?, OneOrMany::One(4_000_000_000));
    assert_eq!(m.require::<OneOrMany<u32>>("u32s")?, OneOrMany::Many(vec![1, 2, 3]));
    assert_eq!(m.require::<&Strings>("strings")?, &tokens);
    assert_eq!(tokens.iter().collect::<Vec<_>>(), [&b"plain"[..], b"", b"\xff\xfe"]);
    assert_eq!(m.iter().next(), Some(("u8", &Value::U8(200))));

    let a = gguf.tensor("a").unwrap();
    assert_eq!((a.ty, a.shape(), a.size), (BlockType::Q8_0, &[64, 3][..], 34 * 6));
    assert_eq!(gguf.data(a), [1; 34 * 6]);
    assert_eq!(gguf.data(gguf.tensor("b").unwrap()), [2; 20]);
    assert!(gguf.tensor("c").is_none());
    assert_eq!(gguf.file_len(), std::fs::metadata(&path).unwrap().len());
    Ok(())
}

#[test]
fn the_smallest_file_has_no_tensors() -> Result<()> {
    let file = Raw { pairs: vec![], tensors: vec![], data: vec![], ..Raw::default() };
    let path = scratch("empty").join("model.gguf");
    // Without tensors there is no data section either, so no padding.
    std::fs::write(&path, &file.bytes()[..24]).unwrap();
    assert!(Gguf::open(&path)?.tensors().is_empty());
    Ok(())
}

#[test]
fn gaps_and_any_order_are_fine() -> Result<()> {
    let mut file = Raw::default();
    (file.tensors[0].offset, file.tensors[1].offset) = (96, 32);
    file.data = (0..128).collect();
    let gguf = Gguf::open(file.write("gaps"))?;
    assert_eq!(gguf.data(gguf.tensor("first").unwrap())[0], 96);
    assert_eq!(gguf.data(gguf.tensor("second").unwrap())[0], 32);
    Ok(())
}

#[test]
fn version_2_reads_as_version_3() -> Result<()> {
    let gguf = Gguf::open(Raw { version: 2, ..Raw::default() }.write("version-2"))?;
    assert_eq!(gguf.tensors().len(), 2);
    Ok(())
}

#[test]
fn fixtures_read() -> Result<()> {
    let gguf = Gguf::open(fixture("tiny-qwen35moe-mtp.gguf"))?;
    assert_eq!(gguf.tensors().len(), 96);
    let m = gguf.metadata();
    assert_eq!(m.iter().count(), 38);
    assert_eq!(m.require::<&str>("general.architecture")?, "qwen35moe");
    assert_eq!(m.require::<&Strings>("tokenizer.ggml.tokens")?.get(639), Some(&b"[PAD639]"[..]));
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!((embedding.ty, embedding.shape()), (BlockType::F16, &[128, 640][..]));
    assert_eq!(gguf.data(embedding).len(), 128 * 640 * 2);
    Ok(())
}

#[test]
fn a_tensor_of_another_model_has_no_data_here() -> Result<()> {
    let large = Gguf::open(fixture("tiny-llama.gguf"))?;
    let small = Gguf::open(Raw::default().write("foreign"))?;
    assert!(small.data(large.tensors().last().unwrap()).is_empty());
    Ok(())
}

#[test]
fn the_writer_refuses_what_cannot_be_read() {
    let dir = scratch("writer");
    let write = |change: &dyn Fn(&mut Writer)| {
        let mut model = Writer::default();
        change(&mut model);
        model.write(dir.join("model.gguf"), |_, sink| sink.write_all(&[0; 4])).unwrap_err()
    };
    let ends =
        |error: engine::Error, word: &str| assert!(error.to_string().contains(word), "{error}");
    ends(write(&|m| _ = m.tensor("t", BlockType::F32, &[2])), "4 bytes of data, not 8");
    ends(write(&|m| _ = m.tensor("t", BlockType::F32, &[])), "shape []");
    ends(write(&|m| _ = m.tensor("t", BlockType::F32, &[1; 5])), "shape [1, 1, 1, 1, 1]");
    ends(write(&|m| _ = m.tensor("t", BlockType::Q8_0, &[33])), "whole blocks");
    ends(write(&|m| _ = m.set("general.alignment", 3u32)), "no power of two");
}
