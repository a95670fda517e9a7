//! Legal alignments other than 32.

use engine::gguf::write::Writer;
use engine::{Gguf, Result};

use crate::gguf::{fixture, logits, scratch};

/// The same model as `gguf`, to be written again.
pub(crate) fn copy_of(gguf: &Gguf) -> Writer {
    let mut model = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        model.set(key, value.clone());
    }
    for tensor in gguf.tensors() {
        model.tensor(&tensor.name, tensor.ty, tensor.shape());
    }
    model
}

/// Asserts that both hold the same tensors with the same data.
#[track_caller]
pub(crate) fn same_tensors(a: &Gguf, b: &Gguf) {
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (x, y) in a.tensors().iter().zip(b.tensors()) {
        assert_eq!((&x.name, x.ty, x.dims), (&y.name, y.ty, y.dims));
        assert!(a.data(x) == b.data(y), "data of `{}`", x.name);
    }
}

#[test]
fn every_legal_alignment_loads_the_same_data() -> Result<()> {
    let original = Gguf::open(fixture("tiny-qwen3.gguf"))?;
    let expected = logits(&fixture("tiny-qwen3.gguf"))?;
    let dir = scratch("alignment");
    for power in 3..=20 {
        let alignment = 1u32 << power;
        let path = dir.join(format!("{alignment}.gguf"));
        let mut model = copy_of(&original);
        model.set("general.alignment", alignment);
        model.write(&path, |tensor, sink| {
            sink.write_all(original.data(original.tensor(&tensor.name).unwrap()))
        })?;
        let copy = Gguf::open(&path)?;
        same_tensors(&original, &copy);
        assert!(copy.tensors().iter().all(|t| t.offset.is_multiple_of(alignment.into())));
        if [8, 64, 1 << 20].contains(&alignment) {
            assert!(logits(&path)? == expected, "logits with alignment {alignment}");
        }
        std::fs::remove_file(path).unwrap();
    }
    Ok(())
}
