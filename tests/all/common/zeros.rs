//! Models of any size whose weights are all zero: cheap to write, and as large in memory as others.

use super::{edited::Temporary, expected::fixtures};
use engine::{
    gguf::{Gguf, Metadata, TensorInfo, write::Writer},
    model::{ModelConfig, tensors::expected_tensors},
    quant::BlockType,
};
use std::{collections::HashMap, io::Write};

const MODEL: &str = "tiny-qwen35moe";

/// A hybrid model of eight layers with `experts` experts each, of which one takes 13 MiB in all:
/// tokenizer and layers of a fixture, Q8_0.
pub(crate) fn hybrid(experts: u32) -> Temporary {
    let fixture = Gguf::open(fixtures().join(format!("models/{MODEL}.gguf"))).unwrap();
    let pairs = fixture.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
    let mut pairs: HashMap<_, _> = pairs.collect();
    for (key, value) in [
        ("embedding_length", 1024),
        ("expert_count", experts),
        ("expert_feed_forward_length", 512),
        ("expert_shared_feed_forward_length", 512),
    ] {
        pairs.insert(format!("qwen35moe.{key}"), value.into());
    }
    let mut writer = Writer::default();
    for (key, value) in &pairs {
        writer.set(key, value.clone());
    }
    let config = ModelConfig::read(&Metadata::from_pairs("zeros", pairs), &|_| None).unwrap();
    let given = |name: &str| fixture.tensor(name).is_some();
    for spec in expected_tensors(&config, given) {
        let matrix = spec.dims[1] > 1 && spec.dims[0].is_multiple_of(32);
        let ty = if matrix { BlockType::Q8_0 } else { BlockType::F32 };
        let n = spec.dims.iter().rposition(|n| *n > 1).map_or(1, |last| last + 1);
        writer.tensor(&spec.name, ty, &spec.dims[..n]);
    }
    let file = Temporary::new();
    let zeros = vec![0; 1 << 20];
    let data = |tensor: &TensorInfo, sink: &mut dyn Write| {
        let mut left = tensor.size as usize;
        while left > 0 {
            let n = left.min(zeros.len());
            sink.write_all(&zeros[..n])?;
            left -= n;
        }
        Ok(())
    };
    writer.write(file.path(), data).unwrap();
    file
}
