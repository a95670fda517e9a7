//! Copies of a model file with something changed.

use engine::{
    gguf::{Gguf, TensorInfo, write::Writer},
    quant::{BlockType, dequantise},
};
use half::f16;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// A file that is removed when dropped.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// A path of its own, ending in `.gguf`.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("engine-{}-{number}.gguf", process::id())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing is lost if it stays.
        let _ = fs::remove_file(&self.0);
    }
}

/// The metadata and the tensors' shapes of `gguf`.
fn header(gguf: &Gguf) -> Writer {
    let mut writer = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value.clone());
    }
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.ty, tensor.shape());
    }
    writer
}

/// `model` with metadata changed by `change`.
pub(crate) fn described(model: &Path, change: impl FnOnce(&mut Writer)) -> Temporary {
    let gguf = Gguf::open(model).unwrap();
    let mut writer = header(&gguf);
    change(&mut writer);
    let out = Temporary::new();
    let data = |entry: &TensorInfo, sink: &mut dyn Write| {
        sink.write_all(gguf.data(gguf.tensor(&entry.name).unwrap()))
    };
    writer.write(out.path(), data).unwrap();
    out
}

/// `model` with every value of the tensors that `which` names multiplied by `factor`.
pub(crate) fn scaled(model: &Path, which: impl Fn(&str) -> bool, factor: f32) -> Temporary {
    edited(model, |name, values| {
        if which(name) {
            values.iter_mut().for_each(|v| *v *= factor);
        }
    })
}

/// The same by a power of two and in the blocks of the file, which must be Q8_0.
pub(crate) fn rescaled(model: &Path, which: impl Fn(&str) -> bool, factor: f32) -> Temporary {
    let gguf = Gguf::open(model).unwrap();
    let writer = header(&gguf);
    let out = Temporary::new();
    let data = |entry: &TensorInfo, sink: &mut dyn Write| {
        let tensor = gguf.tensor(&entry.name).unwrap();
        let mut bytes = gguf.data(tensor).to_vec();
        if which(&entry.name) {
            assert_eq!(tensor.ty, BlockType::Q8_0, "{}", entry.name);
            for block in bytes.chunks_mut(BlockType::Q8_0.block_bytes()) {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32() * factor;
                assert!(scale.abs() < 65504.0, "{}: a scale of {scale}", entry.name);
                block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            }
        }
        sink.write_all(&bytes)
    };
    writer.write(out.path(), data).unwrap();
    out
}

/// `model` with `edit` done to the values of every tensor, by name; all are stored as F32.
pub(crate) fn edited(model: &Path, edit: impl Fn(&str, &mut [f32])) -> Temporary {
    let gguf = Gguf::open(model).unwrap();
    let mut writer = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value.clone());
    }
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, BlockType::F32, tensor.shape());
    }
    let out = Temporary::new();
    let data = |entry: &TensorInfo, sink: &mut dyn Write| {
        let name = entry.name.as_str();
        let tensor = gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.elements() as usize];
        dequantise(tensor.ty, gguf.data(tensor), &mut values).unwrap();
        edit(name, &mut values);
        sink.write_all(bytemuck::cast_slice(&values))
    };
    writer.write(out.path(), data).unwrap();
    out
}
