//! What tells one model from another without reading all of it.

use super::Gguf;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of every tensor that count.
const SAMPLE: usize = 4096;

impl Gguf {
    /// A number that differs between models: XXH3 of all that stands before the tensors' data, and
    /// of the first 4 KiB of each tensor. A change to weights further behind does not show.
    pub fn fingerprint(&self) -> u128 {
        let mut hash = Xxh3Default::new();
        for (number, part) in self.parts.iter().enumerate() {
            let own = self.tensors.iter().filter(|tensor| tensor.part == number);
            let data = own.map(|tensor| tensor.offset as usize).min().unwrap_or(part.bytes.len());
            hash.update(part.bytes.get(..data).unwrap_or_default());
        }
        for tensor in &self.tensors {
            let data = self.data(tensor);
            hash.update(&data[..data.len().min(SAMPLE)]);
        }
        hash.digest128()
    }
}
