//! NVFP4 matrices with the factors that a file has beside them, against the same weights in F32.

use crate::common::{
    devices::{as_it_is, load},
    edited::Temporary,
    expected::fixtures,
};
use engine::{
    Gguf,
    gguf::{TensorInfo, write::Writer},
    kv::KvType,
    quant::{BlockType, dequantise},
};
use std::{io::Write, ops::ControlFlow};

/// Matrices of every kind: rows looked up, experts, dense ones, the output.
fn is_nvfp4(tensor: &TensorInfo) -> bool {
    let names = ["token_embd.", "output.", "ffn_gate_exps", "ffn_up_exps", "attn_q.", "ssm_alpha"];
    tensor.shape()[0].is_multiple_of(64) && names.iter().any(|name| tensor.name.contains(name))
}

/// Blocks of any nibbles, with scales of 2^-4 to 2^-2.
fn blocks(tensor: &TensorInfo) -> Vec<u8> {
    let count = tensor.elements() / 64;
    let byte = |block: u64, i: u64| {
        let noise = (block * 36 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        if i < 4 { 24 + (noise % 16) as u8 } else { noise as u8 }
    };
    (0..count).flat_map(|block| (0..36).map(move |i| byte(block, i))).collect()
}

fn factor(matrix: u64) -> f32 {
    0.3 + 0.1 * matrix as f32
}

/// The fixture with those matrices as NVFP4 and their factors, or as the F32 numbers that they mean.
fn written(gguf: &Gguf, nvfp4: bool) -> Temporary {
    let mut model = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        model.set(key, value.clone());
    }
    for tensor in gguf.tensors() {
        let (name, ours) = (&tensor.name, is_nvfp4(tensor));
        let ty = match ours {
            true if nvfp4 => BlockType::Nvfp4,
            true => BlockType::F32,
            false => tensor.ty,
        };
        model.tensor(name, ty, tensor.shape());
        if ours && nvfp4 {
            let name = name.strip_suffix("weight").unwrap();
            model.tensor(&format!("{name}scale"), BlockType::F32, &[tensor.dims[2]]);
            model.tensor(&format!("{name}input_scale"), BlockType::F32, &[1]);
        }
    }
    let file = Temporary::new();
    let data = |entry: &TensorInfo, sink: &mut dyn Write| {
        let Some(tensor) = gguf.tensor(&entry.name) else {
            let factors: Vec<f32> = (0..entry.elements()).map(factor).collect();
            return sink.write_all(bytemuck::cast_slice(&factors));
        };
        if !is_nvfp4(tensor) {
            return sink.write_all(gguf.data(tensor));
        }
        let blocks = blocks(tensor);
        if nvfp4 {
            return sink.write_all(&blocks);
        }
        let mut values = vec![0.0; tensor.elements() as usize];
        dequantise(BlockType::Nvfp4, &blocks, &mut values).unwrap();
        let matrix = (tensor.dims[0] * tensor.dims[1]) as usize;
        for (e, values) in values.chunks_mut(matrix).enumerate() {
            values.iter_mut().for_each(|v| *v *= factor(e as u64));
        }
        sink.write_all(bytemuck::cast_slice(&values))
    };
    model.write(file.path(), data).unwrap();
    file
}

#[test]
fn factors_are_applied() {
    let gguf = Gguf::open(fixtures().join("models/tiny-qwen35moe.gguf")).unwrap();
    let ids: Vec<u32> = (0..20).map(|i| i * 31 % 640).collect();
    let [got, want] = [true, false].map(|nvfp4| {
        let file = written(&gguf, nvfp4);
        let mut engine = load(file.path(), as_it_is(), KvType::F32, 16);
        let mut seq = engine.new_sequence().unwrap();
        engine.prefill(&mut seq, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
        engine.logits(&seq).unwrap()
    });
    let size = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= 1e-4 * size, "{got} instead of {want}");
    }
}
