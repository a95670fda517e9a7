//! The n-gram embedding's rows: which ones, against the reference's, and their values.

use engine::{
    Error, Gguf, Result,
    gguf::write::Writer,
    gpu::{DeviceOptions, Gpu, MemoryKind, Recorder},
    model::weights::Loader,
    ngram::{HashParams, NgramHash, NgramTable, Storage},
    ops::{
        Tensor, causal_conv,
        ple_gate::{self, PleNorms},
        product::{self, Epilogue},
    },
    quant::{BlockType, dequantise},
};
use half::f16;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use std::{
    fs,
    path::{Path, PathBuf},
};

const TABLE: &str = "per_layer_token_embd.weight";

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ngram").join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A table of random blocks whose scales are finite.
fn random_table(ty: BlockType, rows: u64, width: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(ty.id()));
    let mut bytes = vec![0; (ty.row_bytes(width).unwrap() * rows) as usize];
    rng.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let value: f32 = rng.random_range(-1.0..1.0);
        match ty {
            BlockType::F32 => block.copy_from_slice(&value.to_le_bytes()),
            BlockType::Bf16 => block.copy_from_slice(&value.to_le_bytes()[2..]),
            BlockType::Q4_1 | BlockType::Q5_1 => {
                block[..4].copy_from_slice(&[f16::from_f32(value).to_le_bytes(); 2].concat());
            }
            _ => block[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        }
    }
    bytes
}

/// Writes a model of a table alone.
fn write_table(path: &Path, ty: BlockType, rows: u64, width: u64, bytes: &[u8]) {
    let mut model = Writer::default();
    model.tensor(TABLE, ty, &[width, rows]);
    model.write(path, |_, sink| sink.write_all(bytes)).unwrap();
}

fn values(ty: BlockType, bytes: &[u8], rows: &[u64], width: usize) -> Vec<f32> {
    let size = ty.row_bytes(width as u64).unwrap() as usize;
    let mut out = vec![0.0; rows.len() * width];
    for (row, out) in rows.iter().zip(out.chunks_mut(width)) {
        dequantise(ty, &bytes[*row as usize * size..][..size], out).unwrap();
    }
    out
}

#[test]
fn rows_of_every_type_from_disk_and_memory() -> Result<()> {
    use BlockType::{Bf16, F16, F32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let (rows, width) = (501, 160);
    for ty in [Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, Bf16, F32] {
        let path = scratch("types").join(format!("{ty}.gguf"));
        let bytes = random_table(ty, rows, width);
        write_table(&path, ty, rows, width, &bytes);
        let gguf = Gguf::open(&path)?;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let many: Vec<u64> = (0..4000).map(|_| rng.random_range(0..rows)).collect();
        for storage in [Storage::Disk, Storage::Ram] {
            let table = NgramTable::open(&gguf, storage)?;
            assert_eq!((table.rows(), table.width()), (rows, width as usize));
            for wanted in [&[][..], &[0], &[500], &[1, 0, 500, 499, 1, 1, 77], &many] {
                let want = values(ty, &bytes, wanted, width as usize);
                let got = table.request(wanted)?.wait()?;
                assert!(got == want, "{} rows of {ty}, {storage:?}", wanted.len());
            }
        }
    }
    Ok(())
}

#[test]
fn requests_overlap_and_may_be_given_up() -> Result<()> {
    let path = scratch("overlap").join("table.gguf");
    let bytes = random_table(BlockType::Q8_0, 300, 32);
    write_table(&path, BlockType::Q8_0, 300, 32, &bytes);
    let table = NgramTable::open(&Gguf::open(&path)?, Storage::Disk)?;
    let request = |i: u64| (0..50).map(|r| (r * 7 + i * 13) % 300).collect::<Vec<_>>();
    let mut pending = Vec::new();
    for i in 0..40 {
        pending.push((i, table.request(&request(i))?));
        drop(table.request(&request(i + 1))?);
    }
    for (i, pending) in pending.into_iter().rev() {
        assert_eq!(pending.wait()?, values(BlockType::Q8_0, &bytes, &request(i), 32));
    }
    Ok(())
}

#[test]
fn a_table_in_a_later_part() -> Result<()> {
    let bytes = random_table(BlockType::Iq4Nl, 40, 64);
    let mut model = Writer::default();
    model.tensor("first", BlockType::F32, &[8]).tensor("second", BlockType::F32, &[24]);
    model.tensor(TABLE, BlockType::Iq4Nl, &[64, 40]);
    let paths = model.write_split(scratch("parts").join("model"), 2, |tensor, sink| {
        let other = vec![0; tensor.size as usize];
        sink.write_all(if tensor.name == TABLE { &bytes } else { &other })
    })?;
    assert_eq!(paths.len(), 2);
    for storage in [Storage::Disk, Storage::Ram] {
        let table = NgramTable::open(&Gguf::open(&paths[0])?, storage)?;
        let want = values(BlockType::Iq4Nl, &bytes, &[39, 0, 17], 64);
        assert_eq!(table.request(&[39, 0, 17])?.wait()?, want);
    }
    Ok(())
}

#[test]
fn what_cannot_be_a_table_is_named() -> Result<()> {
    let dir = scratch("wrong");
    let open = |ty, shape: &[u64], name: &str| {
        let mut model = Writer::default();
        model.tensor(name, ty, shape);
        let path = dir.join(format!("{ty}-{}.gguf", shape.len()));
        model.write(&path, |t, sink| sink.write_all(&vec![0; t.size as usize])).unwrap();
        NgramTable::open(&Gguf::open(&path).unwrap(), Storage::Disk).map_err(|e| e.to_string())
    };
    let e = open(BlockType::F32, &[8, 2], "token_embd.weight").unwrap_err();
    assert!(e.contains("`per_layer_token_embd.weight` is missing"), "{e}");
    let e = open(BlockType::F32, &[8, 2, 2], TABLE).unwrap_err();
    assert!(e.contains("has 3 dimensions, not 2"), "{e}");
    let e = open(BlockType::I8, &[8, 2], TABLE).unwrap_err();
    assert!(e.contains("I8"), "{e}");
    let e = open(BlockType::F16, &[8, 2], TABLE).unwrap().request(&[1, 2]).unwrap_err();
    assert!(e.to_string().contains("of 2 rows has no row 2"), "{e}");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_file_cut_short_meanwhile_is_an_error() -> Result<()> {
    let path = scratch("cut").join("table.gguf");
    let bytes = random_table(BlockType::Q8_0, 1000, 32);
    write_table(&path, BlockType::Q8_0, 1000, 32, &bytes);
    let gguf = Gguf::open(&path)?;
    let disk = NgramTable::open(&gguf, Storage::Disk)?;
    let ram = NgramTable::open(&gguf, Storage::Ram)?;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(gguf.tensor(TABLE).unwrap().offset + 500 * 34).unwrap();
    let e = disk.request(&[0, 999])?.wait().unwrap_err();
    assert!(matches!(&e, Error::Gguf { file, .. } if *file == path), "{e}");
    assert!(e.to_string().contains("row 999"), "{e}");
    let e = NgramTable::open(&gguf, Storage::Ram).unwrap_err();
    assert!(e.to_string().contains("ends 17000 bytes before"), "{e}");
    // What is still there can be read, and the readers have survived.
    for table in [disk, ram] {
        let got = table.request(&[3, 0])?.wait()?;
        assert_eq!(got, values(BlockType::Q8_0, &bytes, &[3, 0], 32));
    }
    Ok(())
}

/// The table begins and ends beyond what 32 bits count.
#[cfg(unix)]
#[test]
fn a_table_of_more_than_four_gigabytes() -> Result<()> {
    use std::os::unix::fs::FileExt;
    let path = scratch("large").join("sparse.gguf");
    let (width, rows, before) = (160_u64, 8_000_000_u64, 5_u64 << 30);
    // The writer writes all data; the header of a sparse file is made by hand.
    let mut header = b"GGUF".to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend([2_u64, 0].iter().flat_map(|n| n.to_le_bytes()));
    for (name, shape, offset) in [("other", [before / 4, 1], 0), (TABLE, [width, rows], before)] {
        header.extend((name.len() as u64).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend(2_u32.to_le_bytes());
        header.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
        header.extend(BlockType::F32.id().to_le_bytes());
        header.extend(offset.to_le_bytes());
    }
    let start = header.len().next_multiple_of(32) as u64 + before;
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&header, 0).unwrap();
    file.set_len(start + rows * width * 4).unwrap();
    let marked = [0, 1, 6_710_886, 7_999_999];
    for row in marked {
        file.write_all_at(&(row as f32).to_le_bytes(), start + row * width * 4 + 8).unwrap();
    }
    let table = NgramTable::open(&Gguf::open(&path)?, Storage::Disk)?;
    let got = table.request(&marked)?.wait()?;
    fs::remove_file(&path).unwrap();
    for (row, values) in marked.iter().zip(got.chunks(width as usize)) {
        let mut want = vec![0.0; width as usize];
        want[2] = *row as f32;
        assert_eq!(values, want, "row {row}");
    }
    Ok(())
}

fn fixture() -> Result<Gguf> {
    Gguf::open("tests/fixtures/models/tiny-qwen4exp.gguf")
}

fn expected(name: &str) -> Vec<u8> {
    fs::read(Path::new("tests/fixtures/expected").join(name)).unwrap()
}

#[test]
fn the_reference_hashes_to_the_same_rows() -> Result<()> {
    let gguf = fixture()?;
    let m = gguf.metadata();
    let hash = NgramHash::new(HashParams {
        ngram_size: m.require("qwen4exp.ple.ngram_size")?,
        heads_per_ngram: m.require("qwen4exp.ple.heads_per_ngram")?,
        eos_token_id: m.require("qwen4exp.ple.eos_token_id")?,
        layer_multipliers: m.require("qwen4exp.ple.layer_multipliers")?,
        head_offsets: m.require("qwen4exp.ple.head_offsets")?,
        head_vocab_sizes: m.require("qwen4exp.ple.head_vocab_sizes")?,
    })?;
    let table = NgramTable::open(&gguf, Storage::Disk)?;
    assert!(hash.table_rows() <= table.rows());
    let json: serde_json::Value =
        serde_json::from_slice(&expected("tiny-qwen4exp.json")).expect("expected values");
    let tensors = expected("tiny-qwen4exp.safetensors");
    let tensors = SafeTensors::deserialize(&tensors).expect("expected values");
    for (i, prompt) in json["prompts"].as_array().unwrap().iter().enumerate() {
        let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
        let rows = tensors.tensor(&format!("p{i}.ple_rows")).unwrap();
        let rows: Vec<i32> = bytemuck::pod_collect_to_vec(rows.data());
        let rows: Vec<u64> = rows.into_iter().map(|row| row as u64).collect();
        for chunk in [1, 3, 64, 127, ids.len()] {
            let mut got = Vec::new();
            for first in (0..ids.len()).step_by(chunk) {
                let end = ids.len().min(first + chunk);
                got.extend(hash.rows(&ids[..first], &ids[first..], 0..end - first));
            }
            assert_eq!(got, rows, "prompt {i} in chunks of {chunk}");
        }
        let data = gguf.data(gguf.tensor(TABLE).unwrap());
        let want = values(BlockType::F16, data, &rows, table.width());
        assert_eq!(table.request(&rows)?.wait()?, want, "prompt {i}");
    }
    Ok(())
}

/// From the rows to what the reference's layer adds to the streams, in steps of any length.
#[test]
fn the_reference_adds_the_same_to_the_streams() -> Result<()> {
    let (gguf, gpu) = (fixture()?, Gpu::open(&DeviceOptions::default())?);
    let silent = &mut |_, _| {};
    let mut loader = Loader::new(&gguf, &gpu, 0, silent);
    let mut vector = |part: &str| loader.vector(&format!("blk.1.ple_{part}.weight"));
    let norms = PleNorms {
        key: vector("norm_key")?,
        query: vector("norm_query")?,
        conv: vector("norm_conv")?,
    };
    let conv = vector("conv1d")?;
    let key = loader.matrix("blk.1.ple_key.weight")?;
    let value = loader.matrix("blk.1.ple_value.weight")?;

    let tensors = expected("tiny-qwen4exp.safetensors");
    let tensors = SafeTensors::deserialize(&tensors).expect("expected values");
    let floats = |name: &str| -> Vec<f32> {
        bytemuck::pod_collect_to_vec(tensors.tensor(name).unwrap().data())
    };
    let (added, layers) = (floats("p1.ple_out"), floats("p1.layer_out"));
    let rows: Vec<i32> =
        bytemuck::pod_collect_to_vec(tensors.tensor("p1.ple_rows").unwrap().data());
    let rows: Vec<u64> = rows.into_iter().map(|row| row as u64).collect();
    let embedded = NgramTable::open(&gguf, Storage::Disk)?.request(&rows)?.wait()?;
    let (n_embd, all) = (value.n_out as usize, key.n_out as usize);
    let streams = &layers[..added.len()];
    let largest = added.iter().fold(0.0, |m: f32, v| m.max(v.abs()));

    let upload = |values: &[f32], width: usize| {
        Tensor::upload(&gpu, "test", values, width as u32, MemoryKind::Scratch)
    };
    for chunk in [1, 3, 7] {
        let tail = upload(&vec![0.0; 9 * all], all)?;
        let mut got = Vec::new();
        let steps = embedded.chunks(chunk * value.n_in as usize).zip(streams.chunks(chunk * all));
        for (e, x) in steps {
            let (e, x) = (upload(e, value.n_in as usize)?, upload(x, all)?);
            let n = x.rows;
            let scratch = |width: usize| Tensor::scratch(&gpu, "test", n, width as u32);
            let (k, v, normed) = (scratch(all)?, scratch(n_embd)?, scratch(all)?);
            let mut rec = Recorder::new(&gpu);
            product::record(&mut rec, "key", &key, &e, &k, n, Epilogue::Store)?;
            product::record(&mut rec, "value", &value, &e, &v, n, Epilogue::Store)?;
            ple_gate::record(&mut rec, &k, &v, &norms, &x, &normed, n, 1e-6)?;
            causal_conv::record_add(&mut rec, &normed, &conv, 3, &tail, &x, n)?;
            gpu.submit(&rec.finish()?)?;
            got.extend(x.read(&gpu, n)?);
        }
        for (i, (got, (x, added))) in got.iter().zip(streams.iter().zip(&added)).enumerate() {
            let error = (got - x - added).abs();
            assert!(error <= 2e-5 * largest.max(1.0), "value {i} in chunks of {chunk}: {error}");
        }
        assert_eq!(got.len(), added.len());
    }
    Ok(())
}
